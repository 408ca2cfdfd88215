// SPDX-License-Identifier: Apache-2.0
// The thin products against sums in double, element by element.
#include "kernels/low_rank.hpp"

#include "base/error.hpp"
#include "operand.hpp"

namespace poros {
namespace {

using test::expect_close;
using test::Operand;
using test::random_operand;

class LowRankTest : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, LowRankTest, testing::Values(DType::f32, DType::bf16),
                         test::dtype_name);

constexpr std::int64_t kRows = 576, kWidth = 96, kRank = 8, kPadded = 16, kStride = 112;

TEST_P(LowRankTest, ProjectsAndClearsThePadding) {
  Operand x = random_operand(GetParam(), kRows * kStride, 1);
  const Operand w = random_operand(GetParam(), kRank * kWidth, 2);
  Operand y(GetParam(), std::vector<double>(kRows * kPadded, NAN));
  LowRankProject op{.count = 1, .rows = kRows, .dtype = GetParam()};
  op.parts[0] = {.x = x.data(),
                 .w = w.data(),
                 .y = y.data(),
                 .width = kWidth,
                 .rank = kRank,
                 .padded = kPadded,
                 .x_stride = kStride,
                 .y_stride = kPadded,
                 .scale = 0.25F};
  low_rank_project({.threads = 2}, op);
  std::vector<double> expected;
  for (std::int64_t i = 0; i < kRows; ++i) {
    for (std::int64_t j = 0; j < kPadded; ++j) {
      double sum = 0;
      for (std::int64_t c = 0; j < kRank && c < kWidth; ++c) {
        sum += x[static_cast<std::size_t>(i * kStride + c)] *
               w[static_cast<std::size_t>(j * kWidth + c)];
      }
      expected.push_back(0.25 * sum);
    }
  }
  expect_close(y, expected, "y", 4);
}

TEST_P(LowRankTest, OuterProductIsAddedEitherWayRound) {
  const Operand x = random_operand(GetParam(), kRows * kStride, 3);
  const Operand p = random_operand(GetParam(), kRows * kRank, 4);
  Operand b = random_operand(DType::f32, kWidth * kRank, 5);
  Operand a = b;
  std::vector<double> expected_b, expected_a(b.size());
  for (std::int64_t m = 0; m < kWidth; ++m) {
    for (std::int64_t j = 0; j < kRank; ++j) {
      double sum = 0;
      for (std::int64_t i = 0; i < kRows; ++i) {
        sum += x[static_cast<std::size_t>(i * kStride + m)] *
               p[static_cast<std::size_t>(i * kRank + j)];
      }
      const auto of_a = static_cast<std::size_t>(j * kWidth + m);
      expected_b.push_back(b[expected_b.size()] + 3.0 * sum);
      expected_a[of_a] = a[of_a] + sum;
    }
  }
  LowRankOuter op{.count = 2, .rows = kRows, .dtype = GetParam()};
  op.parts[0] = {.x = x.data(),
                 .p = p.data(),
                 .c = b.floats(),
                 .width = kWidth,
                 .rank = kRank,
                 .x_stride = kStride,
                 .p_stride = kRank,
                 .row = kRank,
                 .column = 1,
                 .scale = 3.0F};
  op.parts[1] = op.parts[0];
  op.parts[1].c = a.floats();
  op.parts[1].row = 1;
  op.parts[1].column = kWidth;
  op.parts[1].scale = 1.0F;
  low_rank_outer({.threads = 2}, op);
  expect_close(b, expected_b, "dB", 100);  // sums of 576 products of magnitude 1
  expect_close(a, expected_a, "dA", 100);
}

TEST_P(LowRankTest, ColumnsCarryTheScaledMatrixInEitherForm) {
  constexpr std::int64_t kOut = 5, kFirst = 3;
  const Operand master = random_operand(DType::f32, kOut * kRank, 6);
  Operand turned(GetParam(), kOut * kRank);
  const std::vector<std::int64_t> list = {0, kOut, kRank};
  low_rank_transpose({}, {.x = static_cast<const float*>(master.data()),
                          .y = turned.data(),
                          .list = list.data(),
                          .count = 1,
                          .most_out = kOut,
                          .dtype = GetParam()});
  Operand y(GetParam(), std::vector<double>(kOut * kPadded, NAN));
  low_rank_columns({}, {.b = turned.data(),
                        .y = y.data(),
                        .rows = kOut,
                        .rank = kRank,
                        .first = kFirst,
                        .padded = kPadded,
                        .y_stride = kPadded,
                        .scale = 2.0F,
                        .dtype = GetParam()});
  std::vector<double> expected(kOut * kPadded, 0.0);
  for (std::int64_t i = 0; i < kOut; ++i) {
    for (std::int64_t j = 0; j < kRank; ++j) {
      expected[static_cast<std::size_t>(i * kPadded + kFirst + j)] =
          2.0 * master[static_cast<std::size_t>(i * kRank + j)];
    }
  }
  expect_close(y, expected, "columns");
}

TEST(LowRank, SizesThatDoNotFitAreRefused) {
  EXPECT_TRUE(low_rank_fits(4096, 18944, 16));
  EXPECT_FALSE(low_rank_fits(4096, 18944, 12));
  EXPECT_FALSE(low_rank_fits(4096, 18944, 256));
  EXPECT_FALSE(low_rank_fits(100, 18944, 16));
  EXPECT_FALSE(low_rank_fits(4096, 100, 16));
  float value = 0;
  LowRankOuter op{.count = 1, .rows = 64, .dtype = DType::f32};
  op.parts[0] = {.x = &value, .p = &value, .c = &value, .width = 30, .rank = 8};
  EXPECT_THROW(low_rank_outer({}, op), Error);
}

}  // namespace
}  // namespace poros
