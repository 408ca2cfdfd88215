// SPDX-License-Identifier: Apache-2.0
// Chunked cross-entropy against the whole softmax in double, both call orders of the header.
#include "kernels/cross_entropy.hpp"

#include "operand.hpp"

namespace poros {
namespace {

using test::Operand;
using test::random_operand;

constexpr std::int64_t kRows = 5, kVocab = 101, kHidden = 13;
constexpr double kInverse = 1.0 / 3.0;
const std::vector<std::int32_t> kTargets{0, -100, 100, 37, -1};

struct Case {
  DType dtype;
  float softcap;
  std::int64_t chunk;
};

class CrossEntropy : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Cases, CrossEntropy,
                         testing::Values(Case{DType::f32, 0, 101}, Case{DType::f32, 0, 40},
                                         Case{DType::f32, 5.0F, 33}, Case{DType::bf16, 0, 64},
                                         Case{DType::bf16, 5.0F, 1}),
                         [](const auto& test) {
                           return std::string(name_of(test.param.dtype)) + "_cap" +
                                  std::to_string(int(test.param.softcap)) + "_chunk" +
                                  std::to_string(test.param.chunk);
                         });

double cap(double logit, double c) {
  return c > 0 ? c * std::tanh(logit / c) : logit;
}

double row_loss(const std::vector<double>& logits, std::int32_t target, double c) {
  double sum = 0;
  for (const double v : logits) sum += std::exp(cap(v, c));
  return std::log(sum) - cap(logits[static_cast<std::size_t>(target)], c);
}

struct State {
  Operand max{DType::f32, kRows}, sum{DType::f32, kRows}, target{DType::f32, kRows};
  CrossEntropyState view() { return {max.floats(), sum.floats(), target.floats()}; }
};

/// Columns first .. first+count-1 of all rows as a contiguous chunk.
Operand chunk_of(const Operand& logits, std::int64_t first, std::int64_t count) {
  Operand chunk(logits.dtype(), static_cast<std::size_t>(kRows * count));
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t c = 0; c < count; ++c) {
      chunk.set(static_cast<std::size_t>(row * count + c),
                logits[static_cast<std::size_t>(row * kVocab + first + c)]);
    }
  }
  return chunk;
}

TEST_P(CrossEntropy, TwoPasses) {
  const auto [dtype, softcap, chunk_size] = GetParam();
  const Operand logits = random_operand(dtype, kRows * kVocab, 41, 4.0);
  State state;
  cross_entropy_init({}, state.view(), kRows);
  for (std::int64_t first = 0; first < kVocab; first += chunk_size) {
    const std::int64_t count = std::min(chunk_size, kVocab - first);
    const Operand chunk = chunk_of(logits, first, count);
    cross_entropy_accumulate({}, {.logits = chunk.data(),
                                  .targets = kTargets.data(),
                                  .state = state.view(),
                                  .rows = kRows,
                                  .classes = count,
                                  .first_class = first,
                                  .dtype = dtype,
                                  .softcap = softcap});
  }
  Operand loss(DType::f32, kRows);
  double total = 10.0;
  cross_entropy_loss({}, {.targets = kTargets.data(),
                          .state = state.view(),
                          .row_loss = loss.floats(),
                          .total = &total,
                          .add_to_total = true,
                          .rows = kRows});
  std::vector<double> expected;
  double expected_total = 10.0;
  for (std::size_t row = 0; row < kRows; ++row) {
    std::vector<double> values;
    for (std::size_t c = 0; c < kVocab; ++c) values.push_back(logits[row * kVocab + c]);
    expected.push_back(kTargets[row] < 0 ? 0 : row_loss(values, kTargets[row], softcap));
    expected_total += expected.back();
  }
  test::expect_close(loss, expected, "loss");
  EXPECT_NEAR(total, expected_total, 2e-5);

  for (std::int64_t first = 0; first < kVocab; first += chunk_size) {
    const std::int64_t count = std::min(chunk_size, kVocab - first);
    Operand chunk = chunk_of(logits, first, count);
    cross_entropy_gradient({}, {.logits = chunk.data(),
                                .targets = kTargets.data(),
                                .state = state.view(),
                                .rows = kRows,
                                .classes = count,
                                .first_class = first,
                                .dtype = dtype,
                                .softcap = softcap,
                                .inv_supervised_tokens = static_cast<float>(kInverse)});
    std::vector<double> gradient;
    for (std::size_t row = 0; row < kRows; ++row) {
      std::vector<double> values;
      for (std::size_t c = 0; c < kVocab; ++c) values.push_back(logits[row * kVocab + c]);
      for (std::int64_t c = first; c < first + count; ++c) {
        const auto objective = [&](double v) {
          auto moved = values;
          moved[static_cast<std::size_t>(c)] = v;
          return row_loss(moved, kTargets[row], softcap) * kInverse;
        };
        gradient.push_back(
            kTargets[row] < 0 ? 0 : test::slope(objective, values[static_cast<std::size_t>(c)]));
      }
    }
    test::expect_close(chunk, gradient, "dlogits of chunk " + std::to_string(first), 2.0);
  }
}

TEST_P(CrossEntropy, OnePassGivesTheSameInputGradient) {
  const auto [dtype, softcap, chunk_size] = GetParam();
  const Operand logits = random_operand(dtype, kRows * kVocab, 42, 3.0);
  const Operand head = random_operand(DType::bf16, kVocab * kHidden, 43);
  State state;
  cross_entropy_init({}, state.view(), kRows);
  Operand rescale(DType::f32, kRows);
  std::vector<float> accumulated(kRows * kHidden, 0.0F);
  for (std::int64_t first = 0; first < kVocab; first += chunk_size) {
    const std::int64_t count = std::min(chunk_size, kVocab - first);
    Operand chunk = chunk_of(logits, first, count);
    cross_entropy_accumulate({}, {.logits = chunk.data(),
                                  .targets = kTargets.data(),
                                  .state = state.view(),
                                  .exponentials = chunk.data(),
                                  .rescale = rescale.floats(),
                                  .rows = kRows,
                                  .classes = count,
                                  .first_class = first,
                                  .dtype = dtype,
                                  .softcap = softcap});
    for (std::size_t row = 0; row < kRows; ++row) {
      for (std::size_t h = 0; h < kHidden; ++h) {
        double sum = accumulated[row * kHidden + h] * rescale[row];
        for (std::int64_t c = 0; c < count; ++c) {
          sum += chunk[row * static_cast<std::size_t>(count) + static_cast<std::size_t>(c)] *
                 head[static_cast<std::size_t>(first + c) * kHidden + h];
        }
        accumulated[row * kHidden + h] = static_cast<float>(sum);
      }
    }
  }
  Operand target_rows(DType::bf16, kRows * kHidden);
  std::vector<double> expected;
  for (std::size_t row = 0; row < kRows; ++row) {
    for (std::size_t h = 0; h < kHidden; ++h) {
      double sum = 0;
      if (kTargets[row] >= 0) {
        double all = 0;
        for (std::size_t c = 0; c < kVocab; ++c) {
          all += std::exp(cap(logits[row * kVocab + c], softcap));
        }
        for (std::size_t c = 0; c < kVocab; ++c) {
          const double value = cap(logits[row * kVocab + c], softcap);
          const double slope = softcap > 0 ? 1 - value * value / (softcap * softcap) : 1;
          const double hot = static_cast<std::int32_t>(c) == kTargets[row] ? 1 : 0;
          sum += (std::exp(value) / all - hot) * slope * head[c * kHidden + h];
        }
        target_rows.set(row * kHidden + h,
                        head[static_cast<std::size_t>(kTargets[row]) * kHidden + h]);
      }
      expected.push_back(sum * kInverse);
    }
  }
  Operand dx(dtype, kRows * kHidden);
  cross_entropy_finish({}, {.accumulated = accumulated.data(),
                            .target_rows = target_rows.data(),
                            .targets = kTargets.data(),
                            .state = state.view(),
                            .dx = dx.data(),
                            .rows = kRows,
                            .hidden = kHidden,
                            .dtype = dtype,
                            .target_dtype = DType::bf16,
                            .softcap = softcap,
                            .inv_supervised_tokens = static_cast<float>(kInverse)});
  test::expect_close(dx, expected, "dx", 2.0);
}

TEST(CrossEntropyFaults, ATargetOutsideTheVocabularyAndANanLogitShow) {
  for (const bool nan_logit : {false, true}) {
    const std::vector<float> logits{0.5F, nan_logit ? NAN : 1.0F, -1.0F};
    const std::int32_t target = nan_logit ? 0 : 3;
    float max = 0;
    float sum = 0;
    float target_logit = 0;
    const CrossEntropyState state{&max, &sum, &target_logit};
    cross_entropy_init({}, state, 1);
    cross_entropy_accumulate(
        {}, {.logits = logits.data(), .targets = &target, .state = state, .rows = 1, .classes = 3});
    float loss = 0;
    double total = 0;
    cross_entropy_loss(
        {}, {.targets = &target, .state = state, .row_loss = &loss, .total = &total, .rows = 1});
    EXPECT_TRUE(std::isnan(loss));
    EXPECT_TRUE(std::isnan(total));
  }
}

TEST(CrossEntropyFaults, NoRowsLeaveAZeroTotal) {
  double total = 5.0;
  cross_entropy_loss({}, {.total = &total, .rows = 0});
  EXPECT_EQ(total, 0.0);
}

}  // namespace
}  // namespace poros
