// SPDX-License-Identifier: Apache-2.0
#include "kernels/philox.hpp"

#include "base/error.hpp"
#include "operand.hpp"

namespace poros {
namespace {

using test::Operand;
using test::random_operand;

// Known answers of the Random123 distribution (kat_vectors, philox4x32 10).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(
      philox4x32_10({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
      (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

class DropoutTest : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, DropoutTest, testing::Values(DType::f32, DType::bf16),
                         test::dtype_name);

constexpr std::uint64_t kSeed = 0x123456789abcdef0ULL;

/// The header's rule, element by element.
bool kept(std::uint32_t row, std::uint32_t column, std::uint32_t micro_batch, float p) {
  const PhiloxCounter words = philox4x32_10({column / 4, row, 7, micro_batch << 20 | 3U << 12 | 5U},
                                            {0x9abcdef0U, 0x12345678U});
  return words[column % 4] >= p * 4294967296.0;
}

Dropout dropout_of(const void* x, void* y, std::int64_t rows, std::int64_t cols, DType dtype,
                   float p) {
  return {.x = x,
          .y = y,
          .rows = rows,
          .cols = cols,
          .dtype = dtype,
          .p = p,
          .seed = kSeed,
          .step = 7,
          .layer = 3,
          .site = 5,
          .first_micro_batch = 2};
}

TEST_P(DropoutTest, MaskIsAFunctionOfThePlace) {
  const DType dtype = GetParam();
  constexpr std::int64_t kRows = 6, kCols = 261;
  const Operand x = random_operand(dtype, kRows * kCols, 51);
  Operand y = random_operand(dtype, kRows * kCols, 52);
  const Operand before = y;
  for (const bool accumulate : {false, true}) {
    y = before;
    Dropout op = dropout_of(x.data(), y.data(), kRows, kCols, dtype, 0.3F);
    op.rows_per_micro_batch = 4;
    op.accumulate = accumulate;
    dropout_forward({}, op);
    std::vector<double> expected;
    for (std::uint32_t row = 0; row < kRows; ++row) {
      for (std::uint32_t c = 0; c < kCols; ++c) {
        const std::size_t at = row * kCols + c;
        const double value = kept(row % 4, c, 2 + row / 4, 0.3F) ? x[at] / (1.0 - 0.3F) : 0.0;
        expected.push_back(value + (accumulate ? before[at] : 0.0));
      }
    }
    test::expect_close(y, expected, "y");
  }
}

TEST_P(DropoutTest, ConcatenatedRowsHaveTheMasksOfTheirMicroBatches) {
  const DType dtype = GetParam();
  constexpr std::int64_t kCols = 33;
  const std::vector<std::int32_t> micro_batch{9, 9, 4, 2};
  const std::vector<std::int32_t> row_index{5, 0, 1, 2};
  const Operand x = random_operand(dtype, 4 * kCols, 53);
  Operand together(dtype, x.size());
  Dropout op = dropout_of(x.data(), together.data(), 4, kCols, dtype, 0.5F);
  op.micro_batch = micro_batch.data();
  op.row_index = row_index.data();
  dropout_backward({}, op);
  for (std::size_t row = 0; row < 4; ++row) {
    for (std::uint32_t c = 0; c < kCols; ++c) {
      const bool keep = kept(static_cast<std::uint32_t>(row_index[row]), c,
                             static_cast<std::uint32_t>(micro_batch[row]), 0.5F);
      EXPECT_EQ(together[row * kCols + c], keep ? 2.0 * x[row * kCols + c] : 0.0);
    }
  }
}

TEST(Dropout, RateIsRightAndZeroIsTheIdentity) {
  constexpr std::int64_t kCount = 200000;
  const std::vector<float> ones(kCount, 1.0F);
  std::vector<float> y(kCount);
  dropout_forward({}, dropout_of(ones.data(), y.data(), 200, 1000, DType::f32, 0.05F));
  double kept_count = 0;
  for (const float v : y) kept_count += v != 0.0F ? 1 : 0;
  // Binomial: 5 standard deviations.
  EXPECT_NEAR(kept_count / kCount, 0.95, 5 * std::sqrt(0.05 * 0.95 / kCount));
  dropout_forward({}, dropout_of(ones.data(), y.data(), 200, 1000, DType::f32, 0.0F));
  EXPECT_EQ(y, ones);
}

TEST(Dropout, WhatTheCounterCannotHoldIsRefused) {
  float x = 1;
  Dropout op = dropout_of(&x, &x, 1, 1, DType::f32, 0.1F);
  EXPECT_NO_THROW(dropout_forward({}, op));
  op.layer = kMaxDropoutLayers;
  EXPECT_THROW(dropout_forward({}, op), Error);
  op.layer = 0;
  op.site = kMaxDropoutSites;
  EXPECT_THROW(dropout_forward({}, op), Error);
  op.site = 0;
  op.first_micro_batch = kMaxMicroBatches;
  EXPECT_THROW(dropout_forward({}, op), Error);
  op.first_micro_batch = 0;
  op.p = 1.0F;
  EXPECT_THROW(dropout_forward({}, op), Error);
  op.p = NAN;
  EXPECT_THROW(dropout_forward({}, op), Error);
}

}  // namespace
}  // namespace poros
