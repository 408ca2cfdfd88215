// SPDX-License-Identifier: Apache-2.0
#include "kernels/gated_activation.hpp"

#include "kernels/cpu_math.hpp"
#include "operand.hpp"

namespace poros {
namespace {

using test::Operand;
using test::random_operand;

double activation(GateFunction function, double g) {
  if (function == GateFunction::silu) return g / (1.0 + std::exp(-g));
  return 0.5 * g * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (g + 0.044715 * g * g * g)));
}

class Gated : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, Gated, testing::Values(DType::f32, DType::bf16), test::dtype_name);

TEST_P(Gated, ForwardAndBackwardOnHalvesOfOneBuffer) {
  const DType dtype = GetParam();
  for (const GateFunction function : {GateFunction::silu, GateFunction::gelu_tanh}) {
    constexpr std::int64_t kRows = 3, kCols = 45;
    Operand fused = random_operand(dtype, kRows * 2 * kCols, 21, 3.0);
    const Operand dy = random_operand(dtype, kRows * kCols, 22);
    auto* gate = static_cast<std::byte*>(fused.data());
    auto* up = gate + kCols * bytes_of(dtype);
    std::vector<double> y, gradient(fused.size());
    for (std::size_t row = 0; row < kRows; ++row) {
      for (std::size_t c = 0; c < kCols; ++c) {
        const std::size_t at = row * 2 * kCols + c;
        const double g = fused[at];
        const double u = fused[at + kCols];
        const double d = dy[row * kCols + c];
        y.push_back(activation(function, g) * u);
        gradient[at] =
            test::slope([&](double v) { return activation(function, v) * u * d; }, g, 1e-5);
        gradient[at + kCols] = d * activation(function, g);
      }
    }
    Operand out(dtype, kRows * kCols);
    gated_activation_forward({}, {.gate = gate,
                                  .up = up,
                                  .y = out.data(),
                                  .rows = kRows,
                                  .cols = kCols,
                                  .gate_stride = 2 * kCols,
                                  .up_stride = 2 * kCols,
                                  .dtype = dtype,
                                  .function = function});
    test::expect_close(out, y, "y");
    Operand again(dtype, kRows * kCols);
    gated_activation_backward({}, {.dy = dy.data(),
                                   .gate = gate,
                                   .up = up,
                                   .dgate = gate,
                                   .dup = up,
                                   .y = again.data(),
                                   .rows = kRows,
                                   .cols = kCols,
                                   .gate_stride = 2 * kCols,
                                   .up_stride = 2 * kCols,
                                   .dtype = dtype,
                                   .function = function});
    test::expect_close(fused, gradient, "dgate, dup", 2.0);
    EXPECT_EQ(again.bytes(), out.bytes());
  }
}

TEST(GatedExtremes, LargeAndNan) {
  const std::vector<float> gate{-200.0F, 200.0F, 0.0F, NAN};
  const std::vector<float> up(4, 2.0F);
  std::vector<float> y(4);
  gated_activation_forward(
      {}, {.gate = gate.data(), .up = up.data(), .y = y.data(), .rows = 1, .cols = 4});
  EXPECT_EQ(y[0], -0.0F);
  EXPECT_EQ(y[1], 400.0F);
  EXPECT_EQ(y[2], 0.0F);
  EXPECT_TRUE(std::isnan(y[3]));
}

// The CPU kernels' own exponentials: error bounds over the whole range, special values.
TEST(CpuMath, ExpIsWithinTwoUlp) {
  double worst = 0;
  for (double x = -87.0; x < 88.7; x += 0.00137) {
    const auto single = static_cast<float>(x);
    const double exact = std::exp(static_cast<double>(single));
    worst = std::max(worst, std::fabs(cpu::exp_f32(single) - exact) / (exact * 0x1p-23));
  }
  EXPECT_LT(worst, 2.0);
  EXPECT_EQ(cpu::exp_f32(0.0F), 1.0F);
  EXPECT_EQ(cpu::exp_f32(-INFINITY), 0.0F);
  EXPECT_EQ(cpu::exp_f32(-200.0F), 0.0F);
  EXPECT_EQ(cpu::exp_f32(INFINITY), INFINITY);
  EXPECT_EQ(cpu::exp_f32(90.0F), INFINITY);
  EXPECT_TRUE(std::isnan(cpu::exp_f32(NAN)));
  EXPECT_NEAR(cpu::exp_f32(-100.0F) / std::exp(-100.0), 1.0, 0.02);  // a subnormal
}

TEST(CpuMath, TanhIsWithinTwoUlp) {
  double worst = 0;
  for (double x = -12.0; x < 12.0; x += 0.00031) {
    const auto single = static_cast<float>(x);
    const double exact = std::tanh(static_cast<double>(single));
    if (exact == 0) continue;
    worst = std::max(worst, std::fabs((cpu::tanh_f32(single) - exact) / (exact * 0x1p-23)));
  }
  EXPECT_LT(worst, 2.0);
  EXPECT_EQ(cpu::tanh_f32(100.0F), 1.0F);
  EXPECT_EQ(cpu::tanh_f32(-INFINITY), -1.0F);
  EXPECT_TRUE(std::isnan(cpu::tanh_f32(NAN)));
}

}  // namespace
}  // namespace poros
