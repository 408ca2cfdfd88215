// SPDX-License-Identifier: Apache-2.0
// RMSNorm against its definition in double; gradients against central differences of that.
#include "kernels/rms_norm.hpp"

#include "base/error.hpp"
#include "operand.hpp"

namespace poros {
namespace {

using test::Operand;
using test::random_operand;

class RmsNorm : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, RmsNorm, testing::Values(DType::f32, DType::bf16),
                         test::dtype_name);

constexpr double kEps = 1e-5;

double round_to(DType dtype, double value) {
  return Operand(dtype, std::vector{value})[0];
}

/// One group in double, rounded where HF rounds.
std::vector<double> reference(const std::vector<double>& r, const Operand& weight, NormWeight kind,
                              DType dtype) {
  double squares = 0;
  for (const double v : r) squares += v * v;
  const double rstd = 1.0 / std::sqrt(squares / static_cast<double>(r.size()) + kEps);
  std::vector<double> y(r.size());
  for (std::size_t c = 0; c < r.size(); ++c) {
    y[c] = kind == NormWeight::plus_one ? r[c] * rstd * (1 + weight[c])
                                        : weight[c] * round_to(dtype, r[c] * rstd);
  }
  return y;
}

TEST_P(RmsNorm, ForwardAddsResidualAndNormalisesTheRoundedSum) {
  const DType dtype = GetParam();
  for (const NormWeight kind : {NormWeight::plain, NormWeight::plus_one}) {
    for (const auto& [rows, cols] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 1}, {3, 7}, {2, 32}, {5, 193}}) {
      const Operand x = random_operand(dtype, rows * cols, 1, 2.0);
      const Operand residual = random_operand(dtype, rows * cols, 2);
      const Operand weight = random_operand(DType::bf16, cols, 3);
      Operand sum(dtype, x.size());
      Operand y(dtype, x.size());
      Operand rstd(DType::f32, static_cast<std::size_t>(rows));
      rms_norm_forward({}, {.x = x.data(),
                            .residual = residual.data(),
                            .residual_out = sum.data(),
                            .weight = weight.data(),
                            .y = y.data(),
                            .rstd = rstd.floats(),
                            .rows = rows,
                            .cols = cols,
                            .dtype = dtype,
                            .weight_dtype = DType::bf16,
                            .weight_kind = kind,
                            .eps = static_cast<float>(kEps)});
      std::vector<double> expected;
      for (std::int64_t row = 0; row < rows; ++row) {
        std::vector<double> r;
        double squares = 0;
        for (std::int64_t c = 0; c < cols; ++c) {
          const auto at = static_cast<std::size_t>(row * cols + c);
          r.push_back(round_to(dtype, x[at] + residual[at]));
          EXPECT_EQ(sum[at], r.back());
          squares += r.back() * r.back();
        }
        for (const double v : reference(r, weight, kind, dtype)) expected.push_back(v);
        const double mean = squares / static_cast<double>(cols);
        EXPECT_NEAR(rstd[static_cast<std::size_t>(row)] * std::sqrt(mean + kEps), 1.0, 1e-6);
      }
      test::expect_close(y, expected, "y");
      // The order of casts shows in the bits: one rounding too few changes many of them, fp32
      // arithmetic before a rounding only a rare tie.
      std::size_t other_bits = 0;
      for (std::size_t i = 0; dtype == DType::bf16 && i < y.size(); ++i) {
        other_bits += y[i] != round_to(dtype, expected[i]) ? 1 : 0;
      }
      EXPECT_LE(other_bits, y.size() / 100);
    }
  }
}

TEST_P(RmsNorm, HeadsOfAStridedRowInPlace) {
  const DType dtype = GetParam();
  constexpr std::int64_t kRows = 3, kHeads = 2, kDim = 10, kStride = 47, kFirst = 5;
  Operand buffer = random_operand(dtype, kRows * kStride, 4);
  const Operand before = buffer;
  const Operand weight = random_operand(DType::f32, kDim, 5);
  auto* base = static_cast<std::byte*>(buffer.data()) + kFirst * bytes_of(dtype);
  rms_norm_forward({}, {.x = base,
                        .weight = weight.data(),
                        .y = base,
                        .rows = kRows,
                        .cols = kDim,
                        .groups = kHeads,
                        .x_stride = kStride,
                        .y_stride = kStride,
                        .dtype = dtype,
                        .eps = static_cast<float>(kEps)});
  std::vector<double> expected;
  for (std::size_t i = 0; i < before.size(); ++i) expected.push_back(before[i]);
  for (std::int64_t group = 0; group < kRows * kHeads; ++group) {
    const std::int64_t at = group / kHeads * kStride + kFirst + group % kHeads * kDim;
    const std::vector<double> r(expected.begin() + at, expected.begin() + at + kDim);
    const auto y = reference(r, weight, NormWeight::plain, dtype);
    std::copy(y.begin(), y.end(), expected.begin() + at);
  }
  test::expect_close(buffer, expected, "row");
  for (std::int64_t row = 0; row < kRows; ++row) {  // what lies between the heads' rows stays
    for (std::int64_t c = 0; c < kStride; ++c) {
      if (c >= kFirst && c < kFirst + kHeads * kDim) continue;
      const auto at = static_cast<std::size_t>(row * kStride + c);
      EXPECT_EQ(buffer[at], before[at]);
    }
  }
}

TEST_P(RmsNorm, BackwardIsTheDerivativePlusTheResidualGradient) {
  const DType dtype = GetParam();
  for (const NormWeight kind : {NormWeight::plain, NormWeight::plus_one}) {
    constexpr std::int64_t kRows = 2, kGroups = 2, kCols = 37;
    const std::size_t count = kRows * kGroups * kCols;
    const Operand r = random_operand(dtype, count, 6);
    const Operand dy = random_operand(dtype, count, 7);
    const Operand residual = random_operand(dtype, count, 8);
    const Operand weight = random_operand(DType::f16, kCols, 9);
    Operand rstd(DType::f32, kRows * kGroups);
    Operand y(dtype, count);
    rms_norm_forward({}, {.x = r.data(),
                          .weight = weight.data(),
                          .y = y.data(),
                          .rstd = rstd.floats(),
                          .rows = kRows,
                          .cols = kCols,
                          .groups = kGroups,
                          .dtype = dtype,
                          .weight_dtype = DType::f16,
                          .weight_kind = kind,
                          .eps = static_cast<float>(kEps)});
    std::vector<double> expected(count);
    for (std::size_t group = 0; group < kRows * kGroups; ++group) {
      std::vector<double> values;
      for (std::size_t c = 0; c < kCols; ++c) values.push_back(r[group * kCols + c]);
      for (std::size_t c = 0; c < kCols; ++c) {
        const auto objective = [&](double v) {
          auto moved = values;
          moved[c] = v;
          double squares = 0;
          for (const double m : moved) squares += m * m;
          const double rs = 1.0 / std::sqrt(squares / kCols + kEps);
          double total = 0;
          for (std::size_t i = 0; i < kCols; ++i) {
            const double w = kind == NormWeight::plus_one ? 1 + weight[i] : weight[i];
            total += dy[group * kCols + i] * w * moved[i] * rs;
          }
          return total;
        };
        expected[group * kCols + c] =
            test::slope(objective, values[c]) + residual[group * kCols + c];
      }
    }
    Operand in_place = residual;  // dx may be the residual gradient
    const RmsNormBackward backward{.dy = dy.data(),
                                   .r = r.data(),
                                   .weight = weight.data(),
                                   .rstd = rstd.floats(),
                                   .residual_gradient = in_place.data(),
                                   .dx = in_place.data(),
                                   .rows = kRows,
                                   .cols = kCols,
                                   .groups = kGroups,
                                   .dtype = dtype,
                                   .weight_dtype = DType::f16,
                                   .weight_kind = kind};
    rms_norm_backward({}, backward);
    test::expect_close(in_place, expected, "dx", 2.0);

    for (std::size_t i = 0; i < count; ++i) expected[i] -= residual[i];
    Operand alone(dtype, count);
    RmsNormBackward without = backward;
    without.residual_gradient = nullptr;
    without.dx = alone.data();
    rms_norm_backward({}, without);
    test::expect_close(alone, expected, "dx without residual", 2.0);
  }
}

TEST(RmsNormErrors, NameTheOp) {
  float value = 1;
  const auto message = [](const RmsNormForward& op) {
    try {
      rms_norm_forward({}, op);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  RmsNormForward op{.x = &value, .weight = &value, .y = &value, .rows = 1, .cols = 1};
  EXPECT_EQ(message(op), "");
  op.dtype = DType::f16;
  EXPECT_NE(message(op).find("rms_norm_forward: dtype f16"), std::string::npos);
  op.dtype = DType::f32;
  op.residual = &value;
  EXPECT_NE(message(op).find("residual_out"), std::string::npos);
  op.residual = nullptr;
  op.y = nullptr;
  EXPECT_NE(message(op).find("null operand"), std::string::npos);
  op.rows = 0;
  EXPECT_EQ(message(op), "");
}

TEST(RmsNormErrors, CudaWithoutDeviceCodeSaysSo) {
  float value = 1;
  try {
    rms_norm_forward({.device = DeviceKind::cuda},
                     {.x = &value, .weight = &value, .y = &value, .rows = 1, .cols = 1});
    FAIL() << "ran without device code";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("rms_norm_forward"), std::string::npos);
    EXPECT_EQ(error.fault(), Fault::environment);
  }
}

TEST(RmsNormErrors, NanIsSeen) {
  std::vector<float> x(40, 1.0F);
  x[17] = NAN;
  const std::vector<float> weight(40, 1.0F);
  rms_norm_forward({},
                   {.x = x.data(), .weight = weight.data(), .y = x.data(), .rows = 1, .cols = 40});
  for (const float v : x) EXPECT_TRUE(std::isnan(v));
}

}  // namespace
}  // namespace poros
