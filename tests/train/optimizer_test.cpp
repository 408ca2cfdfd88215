// SPDX-License-Identifier: Apache-2.0
// AdamW with clipping against torch.optim.AdamW after clip_grad_norm_ (optimizer_figures.json).
#include "train/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "base/files.hpp"
#include "base/json.hpp"
#include "train/schedule.hpp"

namespace poros {
namespace {

constexpr double kTolerance = 1e-6;  // fp32 over six updates of size 1e-2

/// Multiples of 2^-24 in [-0.5, 0.5), exact in fp32; as `draw` in make_optimizer_figures.py.
float draw(std::int64_t index, std::int64_t salt) {
  const auto bits =
      static_cast<std::uint32_t>(static_cast<std::uint64_t>(index) * 2654435761ULL +
                                 static_cast<std::uint64_t>(salt) * 40503ULL + 12345ULL);
  return static_cast<float>(bits >> 8) / 16777216.0F - 0.5F;
}

/// Flat buffers of the reference's tensors, with padding between them as the executor has it.
struct Buffers {
  std::vector<float> master, gradient, exp_avg, exp_avg_sq;
  FlatParameters flat;

  explicit Buffers(const Json& shapes) {
    std::int64_t offset = 0;
    for (const Json& shape : shapes) {
      ParameterView view;
      view.name = "tensor" + std::to_string(flat.views.size());
      view.rows = shape.at(0);
      view.cols = shape.at(1);
      view.offset = offset;
      offset += (view.rows * view.cols + 63) / 64 * 64;
      flat.views.push_back(view);
    }
    for (auto* buffer : {&master, &gradient, &exp_avg, &exp_avg_sq}) {
      buffer->assign(static_cast<std::size_t>(offset), 0.0F);
    }
    flat.master = master.data();
    flat.gradient = gradient.data();
    flat.exp_avg = exp_avg.data();
    flat.exp_avg_sq = exp_avg_sq.data();
  }

  void fill(float* buffer, std::int64_t salt, float scale) {
    for (std::size_t place = 0; place < flat.views.size(); ++place) {
      const ParameterView& view = flat.views[place];
      for (std::int64_t i = 0; i < view.rows * view.cols; ++i) {
        buffer[view.offset + i] = draw(i, salt + static_cast<std::int64_t>(place)) * scale;
      }
    }
  }

  [[nodiscard]] std::vector<float> packed(const float* buffer) const {
    std::vector<float> values;
    for (const ParameterView& view : flat.views) {
      values.insert(values.end(), buffer + view.offset,
                    buffer + view.offset + view.rows * view.cols);
    }
    return values;
  }
};

Json reference() {
  const std::string path = POROS_SOURCE_DIR "/tests/train/optimizer_figures.json";
  return parse_json(read_file(path), path);
}

/// Within kTolerance of the reference, relative to the largest value of its kind.
void expect_near(const std::vector<float>& got, const Json& expected, const char* what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  double largest = 0;
  for (const Json& value : expected) largest = std::max(largest, std::abs(value.get<double>()));
  ASSERT_GT(largest, 0.0) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double value = expected[i];
    EXPECT_TRUE(std::abs(static_cast<double>(got[i]) - value) <= kTolerance * largest)
        << what << "[" << i << "] is " << got[i] << ", expected " << value;
  }
}

TEST(AdamW, EqualsTorchOverSixClippedSteps) {
  const Json figures = reference();
  ASSERT_EQ(figures.at("adamw").size(), 3U);
  for (const Json& run : figures.at("adamw")) {
    Buffers buffers(figures.at("shapes"));
    buffers.fill(buffers.flat.master, 0, 1.0F);
    AdamW optimizer(buffers.flat, {run.at("weight_decay"), run.at("max_norm")}, Stream{});
    const auto norms = run.at("norms").get<std::vector<double>>();
    const auto steps = static_cast<std::int64_t>(norms.size());
    const Schedule schedule("cosine", 1e-2, 2, steps);
    for (std::int64_t step = 0; step < steps; ++step) {
      buffers.fill(buffers.flat.gradient, 1000 + step * 10, run.at("gradient_scale"));
      const std::vector<float> before = buffers.gradient;
      const GradientNorm norm = optimizer.measure_norm();
      const double expected = norms[static_cast<std::size_t>(step)];
      EXPECT_NEAR(norm.norm, expected, kTolerance * expected);
      EXPECT_EQ(norm.finite, 1);
      optimizer.update(schedule.rate(step));
      EXPECT_EQ(buffers.gradient, before) << "gradients stay as accumulated";
    }
    EXPECT_EQ(optimizer.updates(), steps);
    expect_near(buffers.packed(buffers.flat.master), run.at("weight"), "weight");
    expect_near(buffers.packed(buffers.flat.exp_avg), run.at("exp_avg"), "exp_avg");
    expect_near(buffers.packed(buffers.flat.exp_avg_sq), run.at("exp_avg_sq"), "exp_avg_sq");
  }
}

TEST(AdamW, ANonFiniteGradientLeavesEverythingAsItWas) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Buffers buffers(reference().at("shapes"));
    buffers.fill(buffers.flat.master, 0, 1.0F);
    AdamW optimizer(buffers.flat, {0.01, 1.0}, Stream{});
    buffers.fill(buffers.flat.gradient, 1000, 1.0F);
    optimizer.measure_norm();
    optimizer.update(1e-2);
    const Buffers before = buffers;
    buffers.flat.gradient[buffers.flat.views[1].offset + 5] = bad;
    EXPECT_EQ(optimizer.measure_norm().finite, 0);
    optimizer.update(1e-2);
    EXPECT_EQ(buffers.master, before.master);
    EXPECT_EQ(buffers.exp_avg, before.exp_avg);
    EXPECT_EQ(buffers.exp_avg_sq, before.exp_avg_sq);
    EXPECT_EQ(optimizer.updates(), 1);
  }
}

}  // namespace
}  // namespace poros
