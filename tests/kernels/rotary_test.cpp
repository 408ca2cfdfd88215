// SPDX-License-Identifier: Apache-2.0
// Rotary embedding against complex rotation in double; the backward as the inverse rotation.
#include "kernels/rotary.hpp"

#include <complex>

#include "base/error.hpp"
#include "operand.hpp"

namespace poros {
namespace {

using test::Operand;
using test::random_operand;

class RotaryTest : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, RotaryTest, testing::Values(DType::f32, DType::bf16),
                         test::dtype_name);

constexpr std::int64_t kRows = 4, kHeads = 3, kDim = 14, kRotary = 10, kHalf = 5, kPositions = 50;
constexpr float kAttention = 1.25F;

struct Table {
  std::vector<float> inv_freq, cos, sin;
  Table() : cos(kPositions * kHalf), sin(kPositions * kHalf) {
    for (int i = 0; i < kHalf; ++i) {
      inv_freq.push_back(static_cast<float>(std::pow(10000.0, -2.0 * i / kRotary)));
    }
    build_rotary_table(inv_freq, kAttention, kPositions, cos.data(), sin.data());
  }
};

/// Pairs (i, i + half) as complex numbers, turned by the angle.
std::vector<double> rotated(const Operand& x, const std::vector<std::int32_t>& positions,
                            const Table& table, std::int64_t stride, double direction) {
  std::vector<double> y;
  for (std::size_t i = 0; i < x.size(); ++i) y.push_back(x[i]);
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t head = 0; head < kHeads; ++head) {
      for (std::int64_t i = 0; i < kHalf; ++i) {
        const auto at = static_cast<std::size_t>(row * stride + head * kDim + i);
        const double angle = static_cast<double>(static_cast<float>(positions[row]) *
                                                 table.inv_freq[static_cast<std::size_t>(i)]);
        const std::complex<double> turned =
            std::complex<double>(x[at], x[at + kHalf]) *
            std::polar(static_cast<double>(kAttention), direction * angle);
        y[at] = turned.real();
        y[at + kHalf] = turned.imag();
      }
    }
  }
  return y;
}

TEST_P(RotaryTest, FromASourceGivesTheBitsOfCopyingFirst) {
  const DType dtype = GetParam();
  const Table table;
  const std::vector<std::int32_t> positions{0, 1, 49, 7};
  constexpr std::int64_t kWidth = kHeads * kRotary, kStride = kWidth + 6;
  const Operand source = random_operand(dtype, kRows * kWidth, 12);
  Operand in_place = source, y(dtype, kRows * kStride);
  Rotary op{.x = in_place.data(),
            .positions = positions.data(),
            .cos = table.cos.data(),
            .sin = table.sin.data(),
            .rows = kRows,
            .heads = kHeads,
            .head_dim = kRotary,
            .rotary_dim = kRotary,
            .table_positions = kPositions,
            .dtype = dtype};
  rotary_backward({}, op);
  op.x = y.data();
  op.source = source.data();
  op.row_stride = kStride;
  rotary_backward({}, op);
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t c = 0; c < kStride; ++c) {
      EXPECT_EQ(y[static_cast<std::size_t>(row * kStride + c)],
                c < kWidth ? in_place[static_cast<std::size_t>(row * kWidth + c)] : 0.0);
    }
  }
  op.head_dim = kDim;  // dimensions that stay would have to be copied
  EXPECT_THROW(rotary_backward({}, op), Error);
}

TEST_P(RotaryTest, TurnsPairsAndLeavesTheRest) {
  const DType dtype = GetParam();
  const Table table;
  const std::vector<std::int32_t> positions{0, 1, 49, 7};
  constexpr std::int64_t kStride = kHeads * kDim + 3;
  for (const double direction : {1.0, -1.0}) {
    Operand x = random_operand(dtype, kRows * kStride, 11);
    const std::vector<double> expected = rotated(x, positions, table, kStride, direction);
    const Rotary op{.x = x.data(),
                    .positions = positions.data(),
                    .cos = table.cos.data(),
                    .sin = table.sin.data(),
                    .rows = kRows,
                    .heads = kHeads,
                    .head_dim = kDim,
                    .rotary_dim = kRotary,
                    .row_stride = kStride,
                    .table_positions = kPositions,
                    .dtype = dtype};
    direction > 0 ? rotary_forward({}, op) : rotary_backward({}, op);
    test::expect_close(x, expected, "x");
  }
}

TEST(Rotary, BackwardIsTheTranspose) {
  // <R x, g> = <x, R^T g> for random x and g.
  const Table table;
  const std::vector<std::int32_t> positions{3, 0, 31, 12};
  const Operand x = random_operand(DType::f32, kRows * kHeads * kDim, 12);
  const Operand g = random_operand(DType::f32, kRows * kHeads * kDim, 13);
  Operand forward = x;
  Operand backward = g;
  Rotary op{.positions = positions.data(),
            .cos = table.cos.data(),
            .sin = table.sin.data(),
            .rows = kRows,
            .heads = kHeads,
            .head_dim = kDim,
            .rotary_dim = kRotary,
            .table_positions = kPositions};
  op.x = forward.data();
  rotary_forward({}, op);
  op.x = backward.data();
  rotary_backward({}, op);
  double left = 0;
  double right = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    left += forward[i] * g[i];
    right += x[i] * backward[i];
  }
  EXPECT_NEAR(left, right, 1e-4);
}

TEST(Rotary, PositionOutsideTheTableThrows) {
  const Table table;
  std::vector<float> x(kDim);
  for (const std::int32_t bad : {-1, 50}) {
    EXPECT_THROW(rotary_forward({}, {.x = x.data(),
                                     .positions = &bad,
                                     .cos = table.cos.data(),
                                     .sin = table.sin.data(),
                                     .rows = 1,
                                     .heads = 1,
                                     .head_dim = kDim,
                                     .rotary_dim = kRotary,
                                     .table_positions = kPositions}),
                 Error);
  }
}

}  // namespace
}  // namespace poros
