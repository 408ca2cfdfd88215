// SPDX-License-Identifier: Apache-2.0
// AdamW and clipping against torch's own figures (adamw_reference.py), and what non-finite
// gradients leave alone.
#include "kernels/adamw.hpp"

#include "base/error.hpp"
#include "operand.hpp"

namespace poros {
namespace {

#include "adamw_reference.inc"

using test::Operand;

/// The same numbers as values() of adamw_reference.py.
std::vector<float> values(std::size_t count, std::uint64_t seed, float factor = 1.0F) {
  std::vector<float> out;
  for (std::size_t i = 0; i < count; ++i) {
    seed = (seed * 1103515245U + 12345U) % (1ULL << 31);
    out.push_back(static_cast<float>(static_cast<int>(seed / 65536 % 128) - 64) / 64.0F * factor);
  }
  return out;
}

/// Two tensors of 5 and 7 elements with their optimizer state.
struct Model {
  std::vector<float> weight[2] = {values(5, 1), values(7, 2)};
  std::vector<float> gradient[2] = {std::vector<float>(5), std::vector<float>(7)};
  std::vector<float> m[2] = {std::vector<float>(5), std::vector<float>(7)};
  std::vector<float> v[2] = {std::vector<float>(5), std::vector<float>(7)};
  std::vector<Bf16> copy = std::vector<Bf16>(7);
  AdamWTensor tensors[2];
  std::int64_t step = 0;
  GradientNorm norm;

  AdamWTensors list() {
    for (std::size_t t = 0; t < 2; ++t) {
      tensors[t] = {.weight = weight[t].data(),
                    .gradient = gradient[t].data(),
                    .exp_avg = m[t].data(),
                    .exp_avg_sq = v[t].data(),
                    .copy = t == 1 ? copy.data() : nullptr,
                    .count = static_cast<std::int64_t>(weight[t].size())};
    }
    return {.host = tensors, .size = 2};
  }
  void take_norm() {
    std::vector<double> workspace(static_cast<std::size_t>(global_norm_workspace(list())));
    global_norm({}, {.tensors = list(), .workspace = workspace.data(), .result = &norm});
  }
};

void compare(const float* after, const float* norms, double lr, double beta1, double beta2,
             double decay) {
  Model model;
  for (std::size_t step = 0; step < 3; ++step) {
    for (std::size_t t = 0; t < 2; ++t) {
      model.gradient[t] =
          values(model.weight[t].size(), 10 * step + t + 3, step == 1 ? 4.0F : 0.25F);
    }
    model.take_norm();
    EXPECT_NEAR(model.norm.norm / norms[step], 1.0, 2e-7);
    EXPECT_EQ(model.norm.finite, 1);
    adamw_step({}, {.tensors = model.list(),
                    .norm = &model.norm,
                    .step = &model.step,
                    .learning_rate = lr,
                    .beta1 = beta1,
                    .beta2 = beta2,
                    .weight_decay = decay,
                    .max_norm = 1.0});
    for (std::size_t t = 0; t < 2; ++t) {
      for (const auto* part : {&model.weight[t], &model.m[t], &model.v[t]}) {
        for (const float value : *part) {
          // torch's vector code may contract a product and a sum: roundings of terms up to 0.06.
          EXPECT_NEAR(value, *after, 2e-7 * std::fabs(*after) + 4e-9) << "step " << step;
          ++after;
        }
      }
    }
    for (std::size_t i = 0; i < 7; ++i) {
      EXPECT_EQ(model.copy[i].bits, to_bf16(model.weight[1][i]).bits);
    }
  }
  EXPECT_EQ(model.step, 3);
}

TEST(AdamW, FollowsTorch) {
  compare(kAfter0, kNorm0, 1e-2, 0.9, 0.999, 0.01);
  compare(kAfter1, kNorm1, 3e-2, 0.4, 0.95, 0.0);
  compare(kAfter2, kNorm2, 1e-3, 0.9, 0.95, 0.1);
}

TEST(AdamW, NonFiniteGradientsChangeNothing) {
  for (const float bad : {NAN, INFINITY, -INFINITY, 3.0e38F}) {
    Model model;
    model.gradient[0] = values(5, 3);
    model.gradient[1] = values(7, 4);
    const auto step = [&] {
      model.take_norm();
      adamw_step({}, {.tensors = model.list(),
                      .norm = &model.norm,
                      .step = &model.step,
                      .learning_rate = 0.1,
                      .max_norm = 1.0});
    };
    step();
    const Model before = model;
    model.gradient[1][6] = bad;
    model.gradient[0][0] = bad;  // two of 3e38: the norm itself overflows
    step();
    EXPECT_EQ(model.norm.finite, 0) << bad;
    EXPECT_EQ(model.step, 1);
    for (std::size_t t = 0; t < 2; ++t) {
      EXPECT_EQ(model.weight[t], before.weight[t]);
      EXPECT_EQ(model.m[t], before.m[t]);
      EXPECT_EQ(model.v[t], before.v[t]);
    }
  }
}

TEST(AdamW, GlobalNormSpansChunksAndThreads) {
  // More than one chunk, an odd rest, an empty tensor.
  std::vector<float> big(static_cast<std::size_t>(2 * kOptimizerChunk + 77));
  double squares = 0;
  for (std::size_t i = 0; i < big.size(); ++i) {
    big[i] = std::sin(static_cast<float>(i)) * 1e-3F;
    squares += static_cast<double>(big[i]) * big[i];
  }
  const AdamWTensor tensors[2] = {{.gradient = big.data(), .count = std::int64_t(big.size())},
                                  {.count = 0}};
  const AdamWTensors list{.host = tensors, .size = 2};
  EXPECT_EQ(global_norm_workspace(list), 3 + 2);
  std::vector<double> workspace(5);
  GradientNorm one;
  GradientNorm two;
  global_norm({}, {.tensors = list, .workspace = workspace.data(), .result = &one});
  global_norm({.threads = 2}, {.tensors = list, .workspace = workspace.data(), .result = &two});
  EXPECT_NEAR(one.norm / std::sqrt(squares), 1.0, 1e-7);
  EXPECT_EQ(one.norm, two.norm);
  EXPECT_EQ(one.finite, 1);
  global_norm({}, {.tensors = {}, .result = &one});
  EXPECT_EQ(one.norm, 0.0F);
  EXPECT_EQ(one.finite, 1);
}

TEST(AdamW, ClippingWithoutANormIsRefused) {
  Model model;
  EXPECT_THROW(adamw_step({}, {.tensors = model.list(), .step = &model.step, .max_norm = 1.0}),
               Error);
}

}  // namespace
}  // namespace poros
