// SPDX-License-Identifier: Apache-2.0
#include "kernels/elementwise.hpp"

#include "base/error.hpp"
#include "operand.hpp"

namespace poros {
namespace {

using test::Operand;
using test::random_operand;

const DType kTypes[] = {DType::f32, DType::bf16, DType::f16};
const DType kActivations[] = {DType::f32, DType::bf16};

TEST(DTypes, EveryHalfAndBfloatSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = F16{static_cast<std::uint16_t>(bits)};
    const auto brain = Bf16{static_cast<std::uint16_t>(bits)};
    if (std::isnan(to_float(half))) {
      EXPECT_TRUE(std::isnan(to_float(to_f16(to_float(half)))));
    } else {
      EXPECT_EQ(to_f16(to_float(half)).bits, bits);
    }
    if (std::isnan(to_float(brain))) {
      EXPECT_TRUE(std::isnan(to_float(to_bf16(to_float(brain)))));
    } else {
      EXPECT_EQ(to_bf16(to_float(brain)).bits, bits);
    }
  }
  EXPECT_EQ(to_float(F16{0x3C00}), 1.0F);
  EXPECT_EQ(to_float(F16{0x0001}), 0x1p-24F);
  EXPECT_EQ(to_float(F16{0xFBFF}), -65504.0F);
  EXPECT_EQ(to_float(Bf16{0x3F80}), 1.0F);
}

TEST(DTypes, RoundingIsToNearestTiesToEven) {
  EXPECT_EQ(to_bf16(1.00390625F).bits, 0x3F80);  // 1 + 2^-8: tie, to even
  EXPECT_EQ(to_bf16(1.01171875F).bits, 0x3F82);  // 1 + 3*2^-8: tie, to even
  EXPECT_EQ(to_bf16(std::nextafter(1.00390625F, 2.0F)).bits, 0x3F81);
  EXPECT_EQ(to_bf16(3.4e38F).bits, 0x7F80);        // overflows to infinity
  EXPECT_EQ(to_f16(1.00048828125F).bits, 0x3C00);  // 1 + 2^-11: tie, to even
  EXPECT_EQ(to_f16(65519.0F).bits, 0x7BFF);
  EXPECT_EQ(to_f16(65520.0F).bits, 0x7C00);
  EXPECT_EQ(to_f16(0x1p-25F).bits, 0x0000);    // tie, to even
  EXPECT_EQ(to_f16(0x1.8p-24F).bits, 0x0002);  // tie, to even
  EXPECT_EQ(to_f16(-0x1.8p-25F).bits, 0x8001);
  // All floats between neighbouring halves, sampled: nearest by distance.
  for (std::uint32_t bits = 0; bits < 0x7BFF; bits += 7) {
    const float low = to_float(F16{static_cast<std::uint16_t>(bits)});
    const float high = to_float(F16{static_cast<std::uint16_t>(bits + 1)});
    EXPECT_EQ(to_f16(low + (high - low) * 0.25F).bits, bits);
    EXPECT_EQ(to_f16(low + (high - low) * 0.75F).bits, bits + 1);
    EXPECT_EQ(to_f16(low + (high - low) * 0.5F).bits, bits + (bits & 1));
  }
}

TEST(Elementwise, CopyConvertsAndStrides) {
  for (const DType from : kTypes) {
    for (const DType to : kTypes) {
      constexpr std::int64_t kRows = 3, kCols = 19, kFrom = 25, kTo = 31;
      const Operand x = random_operand(from, kRows * kFrom, 61);
      Operand y = random_operand(to, kRows * kTo, 62);
      std::vector<double> expected;
      for (std::size_t i = 0; i < y.size(); ++i) expected.push_back(y[i]);
      for (std::size_t row = 0; row < kRows; ++row) {
        for (std::size_t c = 0; c < kCols; ++c) {
          expected[row * kTo + c] = Operand(to, std::vector{x[row * kFrom + c]})[0];
        }
      }
      copy_rows({}, {.x = x.data(),
                     .y = y.data(),
                     .rows = kRows,
                     .cols = kCols,
                     .x_stride = kFrom,
                     .y_stride = kTo,
                     .x_dtype = from,
                     .y_dtype = to});
      for (std::size_t i = 0; i < y.size(); ++i) EXPECT_EQ(y[i], expected[i]);
    }
  }
}

TEST(Elementwise, CastCoversEveryElement) {
  for (const std::int64_t count : {0, 1, 4095, 4096, 9001}) {
    const Operand x = random_operand(DType::f32, count, 63);
    Operand y(DType::bf16, static_cast<std::size_t>(count));
    cast({.threads = 2}, x.data(), DType::f32, y.data(), DType::bf16, count);
    for (std::size_t i = 0; i < y.size(); ++i) {
      EXPECT_EQ(y[i], to_float(to_bf16(static_cast<float>(x[i]))));
    }
  }
}

TEST(Elementwise, AddInEveryMixOfTypes) {
  for (const DType a_type : kActivations) {
    for (const DType b_type : kActivations) {
      for (const DType y_type : kActivations) {
        constexpr std::int64_t kRows = 2, kCols = 21;
        const Operand a = random_operand(a_type, kRows * kCols, 64);
        const Operand b = random_operand(b_type, kRows * (kCols + 2), 65);
        Operand y(y_type, kRows * kCols);
        add_rows({}, {.a = a.data(),
                      .b = b.data(),
                      .y = y.data(),
                      .rows = kRows,
                      .cols = kCols,
                      .b_stride = kCols + 2,
                      .a_dtype = a_type,
                      .b_dtype = b_type,
                      .y_dtype = y_type,
                      .factor = 0.75F});
        std::vector<double> expected;
        for (std::size_t row = 0; row < kRows; ++row) {
          for (std::size_t c = 0; c < kCols; ++c) {
            expected.push_back(a[row * kCols + c] + 0.75 * b[row * (kCols + 2) + c]);
          }
        }
        test::expect_close(y, expected, "y");
      }
    }
  }
}

TEST(Elementwise, AccumulatesInPlace) {
  Operand total = random_operand(DType::f32, 40, 66);
  const Operand more = random_operand(DType::bf16, 40, 67);
  std::vector<double> expected;
  for (std::size_t i = 0; i < 40; ++i) expected.push_back(total[i] + more[i]);
  add_rows({}, {.a = total.data(),
                .b = more.data(),
                .y = total.data(),
                .rows = 4,
                .cols = 10,
                .b_dtype = DType::bf16});
  test::expect_close(total, expected, "total");
}

TEST(Elementwise, BiasAndScale) {
  for (const DType dtype : kActivations) {
    for (const DType bias_type : kTypes) {
      Operand x = random_operand(dtype, 3 * 12, 68);
      const Operand before = x;
      const Operand bias = random_operand(bias_type, 11, 69);
      add_bias({}, {.x = x.data(),
                    .bias = bias.data(),
                    .rows = 3,
                    .cols = 11,
                    .x_stride = 12,
                    .dtype = dtype,
                    .bias_dtype = bias_type});
      std::vector<double> expected;
      for (std::size_t i = 0; i < x.size(); ++i) {
        expected.push_back(before[i] + (i % 12 < 11 ? bias[i % 12] : 0.0));
      }
      test::expect_close(x, expected, "x + bias");
    }
    Operand x = random_operand(dtype, 3 * 12, 70);
    const Operand before = x;
    const std::vector<float> row_factor{2.0F, 0.0F, -0.3F};
    scale_rows({}, {.x = x.data(),
                    .y = x.data(),
                    .row_factor = row_factor.data(),
                    .rows = 3,
                    .cols = 12,
                    .dtype = dtype,
                    .factor = 1.5F});
    std::vector<double> expected;
    for (std::size_t i = 0; i < x.size(); ++i) {
      expected.push_back(before[i] * row_factor[i / 12] * 1.5);
    }
    test::expect_close(x, expected, "scaled");
  }
}

TEST(Elementwise, GatherRoundsTheRowThenScales) {
  for (const DType from : kTypes) {
    for (const DType to : kActivations) {
      const Operand source = random_operand(from, 6 * 9, 71);
      const std::vector<std::int32_t> index{5, 0, 5, 3};
      Operand y(to, 4 * 9);
      gather_rows({}, {.source = source.data(),
                       .index = index.data(),
                       .y = y.data(),
                       .rows = 4,
                       .cols = 9,
                       .source_rows = 6,
                       .source_dtype = from,
                       .y_dtype = to,
                       .factor = 3.3125F});
      for (std::size_t i = 0; i < y.size(); ++i) {
        const double value = source[static_cast<std::size_t>(index[i / 9]) * 9 + i % 9];
        const double rounded = Operand(to, std::vector{value})[0];
        EXPECT_EQ(y[i], Operand(to, std::vector{rounded * 3.3125})[0]);
      }
    }
  }
  float value = 0;
  const std::int32_t bad = 1;
  EXPECT_THROW(
      gather_rows(
          {},
          {.source = &value, .index = &bad, .y = &value, .rows = 1, .cols = 1, .source_rows = 1}),
      Error);
}

TEST(Elementwise, GroupSumJoinsTheHeadsOfAKeyHead) {
  for (const DType dtype : kActivations) {
    constexpr std::int64_t kRows = 2, kKv = 2, kGroup = 3, kDim = 5;
    const Operand x = random_operand(dtype, kRows * kKv * kGroup * kDim, 72);
    Operand y(dtype, kRows * kKv * kDim);
    group_sum({}, {.x = x.data(),
                   .y = y.data(),
                   .rows = kRows,
                   .kv_heads = kKv,
                   .group = kGroup,
                   .head_dim = kDim,
                   .x_dtype = dtype,
                   .y_dtype = dtype});
    std::vector<double> expected;
    for (std::size_t head = 0; head < kRows * kKv; ++head) {
      for (std::size_t d = 0; d < kDim; ++d) {
        double sum = 0;
        for (std::size_t g = 0; g < kGroup; ++g) sum += x[(head * kGroup + g) * kDim + d];
        expected.push_back(sum);
      }
    }
    test::expect_close(y, expected, "y");
  }
}

TEST(Elementwise, AStrideBelowTheWidthIsRefused) {
  float x[8] = {};
  EXPECT_THROW(scale_rows({}, {.x = x, .y = x, .rows = 2, .cols = 4, .x_stride = 3}), Error);
}

}  // namespace
}  // namespace poros
