// SPDX-License-Identifier: Apache-2.0
// NF4's constants from their definitions, and every decision that kernels/nf4.hpp documents.
#include "kernels/nf4.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace poros {
namespace {

/// Quantile function of the normal distribution, by bisection of the distribution function.
double normal_quantile(double p) {
  double low = -10, high = 10;
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(-middle / std::sqrt(2.0)) < p ? low : high) = middle;
  }
  return (low + high) / 2;
}

TEST(Nf4Constants, ValuesAreNormalQuantiles) {
  // 8 values above zero and 7 below, at evenly spaced probabilities up to the offset, scaled to 1.
  const double offset = 0.9677083;
  std::vector<double> expected = {0};
  for (int i = 0; i < 8; ++i) expected.push_back(normal_quantile(offset + (0.5 - offset) * i / 8));
  for (int i = 0; i < 7; ++i) expected.push_back(-normal_quantile(offset + (0.5 - offset) * i / 7));
  std::sort(expected.begin(), expected.end());
  const double largest = expected.back();
  for (std::size_t i = 0; i < 16; ++i) {
    EXPECT_NEAR(nf4_values()[i], expected[i] / largest, 2e-6) << i;
  }
}

TEST(Nf4Constants, ThresholdsAreMidpoints) {
  for (std::size_t i = 0; i < 15; ++i) {
    const double middle =
        (static_cast<double>(nf4_values()[i]) + static_cast<double>(nf4_values()[i + 1])) / 2;
    // The published constants are midpoints of values with more digits: equal or the next float.
    const auto rounded = static_cast<float>(middle);
    EXPECT_GE(nf4_thresholds()[i], std::nextafter(rounded, -2.0F)) << i;
    EXPECT_LE(nf4_thresholds()[i], std::nextafter(rounded, 2.0F)) << i;
  }
}

TEST(Nf4Constants, DynamicMapFollowsItsDefinition) {
  std::vector<double> expected = {0, 1};
  for (int i = 0; i < 7; ++i) {
    const int pieces = 1 << i;
    for (int k = 0; k < pieces; ++k) {
      const double low = 0.1 + 0.9 * k / pieces, high = 0.1 + 0.9 * (k + 1) / pieces;
      const double value = std::pow(10.0, i - 6) * (low + high) / 2;
      expected.push_back(value);
      expected.push_back(-value);
    }
  }
  std::sort(expected.begin(), expected.end());
  ASSERT_EQ(expected.size(), 256U);
  EXPECT_EQ(nf4_dynamic_map()[127], 0.0F);
  EXPECT_EQ(nf4_dynamic_map()[255], 1.0F);
  for (std::size_t i = 0; i < 256; ++i) {
    EXPECT_NEAR(nf4_dynamic_map()[i], expected[i], 2e-7 * std::abs(expected[i])) << i;
  }
}

/// The definition of the header, step by step, in scalar code.
void reference_quantise(const std::vector<float>& x, std::vector<std::uint8_t>& codes,
                        std::vector<float>& absmax) {
  const auto n = static_cast<std::int64_t>(x.size());
  codes.assign(static_cast<std::size_t>(nf4_code_bytes(n)), n % 2 == 1 ? 7 : 0);
  absmax.assign(static_cast<std::size_t>(nf4_blocks(n)), 0);
  for (std::int64_t begin = 0; begin < n; begin += 64) {
    float& largest = absmax[static_cast<std::size_t>(begin / 64)];
    const std::int64_t end = std::min(n, begin + 64);
    for (std::int64_t i = begin; i < end; ++i) {
      const float magnitude = std::fabs(x[static_cast<std::size_t>(i)]);
      if (magnitude > largest) largest = magnitude;
    }
    const float scale = 1.0F / std::max(largest, 1e-38F);
    for (std::int64_t i = begin; i < end; ++i) {
      const float y = x[static_cast<std::size_t>(i)] * scale;
      int code = 0;
      for (const float t : nf4_thresholds()) code += y > t ? 1 : 0;
      std::uint8_t& byte = codes[static_cast<std::size_t>(i / 2)];
      byte = static_cast<std::uint8_t>(i % 2 == 0 ? (byte & 0x0f) | (code << 4)
                                                  : (byte & 0xf0) | code);
    }
  }
}

std::vector<float> normal_values(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.02F);
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

class Nf4Isas : public testing::TestWithParam<Nf4Isa> {
 protected:
  void SetUp() override {
    if (nf4_use_isa(GetParam()) != GetParam()) GTEST_SKIP() << "this CPU lacks it";
  }
  void TearDown() override { nf4_use_isa(nf4_best_isa()); }
};

TEST_P(Nf4Isas, QuantisesAsDefinedForEverySize) {
  for (const std::size_t n : {0, 1, 2, 31, 63, 64, 65, 127, 128, 129, 4097}) {
    const std::vector<float> x = normal_values(n, static_cast<unsigned>(n));
    std::vector<std::uint8_t> expected_codes;
    std::vector<float> expected_absmax;
    reference_quantise(x, expected_codes, expected_absmax);
    std::vector<std::uint8_t> codes(expected_codes.size() + 1, 0xee);
    std::vector<float> absmax(expected_absmax.size() + 1, -5);
    nf4_quantise_fp32(x.data(), static_cast<std::int64_t>(n), codes.data(), absmax.data());
    EXPECT_EQ(codes.back(), 0xee) << n;
    EXPECT_EQ(absmax.back(), -5) << n;
    codes.pop_back();
    absmax.pop_back();
    EXPECT_EQ(codes, expected_codes) << n;
    EXPECT_EQ(absmax, expected_absmax) << n;
  }
}

TEST_P(Nf4Isas, EveryBf16AndFp16ValueQuantisesLikeItsFp32Value) {
  // Each of the 2^16 patterns beside a value that sets the block's scale; NaN and infinity
  // included.
  const auto check = [](auto pattern, auto quantise) {
    using T = decltype(pattern);
    for (const float scale : {0.0F, 1e-3F, 1.0F, 3e4F}) {
      std::vector<T> x(65536);
      std::vector<float> wide(65536);
      for (std::uint32_t i = 0; i < 65536; ++i) {
        x[i] = i % 64 == 63 ? from_float<T>(scale) : T{static_cast<std::uint16_t>(i)};
        wide[i] = to_float(x[i]);
      }
      std::vector<std::uint8_t> codes(32768), expected_codes;
      std::vector<float> absmax(1024), expected_absmax;
      reference_quantise(wide, expected_codes, expected_absmax);
      quantise(x.data(), 65536, codes.data(), absmax.data());
      EXPECT_EQ(codes, expected_codes);
      EXPECT_EQ(absmax, expected_absmax);
    }
  };
  check(Bf16{}, nf4_quantise_bf16);
  check(F16{}, nf4_quantise_fp16);
}

TEST_P(Nf4Isas, ZerosNanAndInfinityAreDefined) {
  std::vector<float> x(192, 0.0F);
  const float infinity = std::numeric_limits<float>::infinity();
  x[64] = std::numeric_limits<float>::quiet_NaN();
  x[65] = 2;
  x[128] = infinity;
  x[129] = 1;
  std::vector<std::uint8_t> codes(96);
  std::vector<float> absmax(3);
  nf4_quantise_fp32(x.data(), 192, codes.data(), absmax.data());
  EXPECT_EQ(absmax, (std::vector<float>{0, 2, infinity}));
  EXPECT_EQ(codes[0], 0x77);
  EXPECT_EQ(codes[32], 0x0f);  // NaN, 2
  EXPECT_EQ(codes[33], 0x77);
  EXPECT_EQ(codes[64], 0x07);  // infinity, 1
}

TEST_P(Nf4Isas, UnalignedPointersGiveTheSameBytes) {
  const std::vector<float> x = normal_values(640, 3);
  std::vector<std::uint8_t> codes(320), shifted_codes(321);
  std::vector<float> absmax(10);
  std::vector<char> raw(640 * 4 + 1), raw_absmax(41);
  std::memcpy(raw.data() + 1, x.data(), 640 * 4);
  nf4_quantise_fp32(x.data(), 640, codes.data(), absmax.data());
  nf4_quantise_fp32(reinterpret_cast<const float*>(raw.data() + 1), 640, shifted_codes.data() + 1,
                    reinterpret_cast<float*>(raw_absmax.data() + 1));
  EXPECT_TRUE(std::equal(codes.begin(), codes.end(), shifted_codes.begin() + 1));
  EXPECT_EQ(std::memcmp(raw_absmax.data() + 1, absmax.data(), 40), 0);
}

TEST_P(Nf4Isas, DequantisesEveryRangeAsDefined) {
  const std::int64_t n = 64 * 300 + 17;
  const std::vector<float> x = normal_values(static_cast<std::size_t>(n), 5);
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(nf4_code_bytes(n)));
  std::vector<float> absmax(static_cast<std::size_t>(nf4_blocks(n)));
  nf4_quantise_fp32(x.data(), n, codes.data(), absmax.data());
  const auto blocks = static_cast<std::int64_t>(absmax.size());
  std::vector<std::uint8_t> q(absmax.size());
  std::vector<float> nested(static_cast<std::size_t>(nf4_nested_blocks(n)));
  const float offset = nf4_absmax_offset(absmax.data(), blocks);
  nf4_quantise_absmax(absmax.data(), blocks, offset, q.data(), nested.data());
  Nf4View single, twice;
  single.codes = twice.codes = codes.data();
  single.absmax = absmax.data();
  twice.q = q.data();
  twice.nested_absmax = nested.data();
  twice.offset = offset;
  for (const Nf4View& view : {single, twice}) {
    const auto expected = [&](std::int64_t i) {
      const std::uint8_t byte = codes[static_cast<std::size_t>(i / 2)];
      const auto block = static_cast<std::size_t>(i / 64);
      float scale = absmax[block];
      if (view.q != nullptr) {
        volatile float product = nf4_dynamic_map()[q[block]] * nested[block / 256];
        scale = product + offset;
      }
      return nf4_values()[i % 2 == 0 ? byte >> 4 : byte & 15] * scale;
    };
    const std::vector<std::pair<std::int64_t, std::int64_t>> ranges = {
        {0, n}, {0, 0}, {1, 1}, {3, 61}, {63, 2}, {64, 64}, {65, 400}, {n - 17, 17}, {n - 1, 1}};
    for (const auto& [first, count] : ranges) {
      std::vector<float> wide(static_cast<std::size_t>(count) + 1, 9);
      std::vector<Bf16> narrow(static_cast<std::size_t>(count) + 1, Bf16{0x1234});
      nf4_dequantise_fp32(view, first, count, wide.data());
      nf4_dequantise_bf16(view, first, count, narrow.data());
      for (std::int64_t i = 0; i < count; ++i) {
        const auto at = static_cast<std::size_t>(i);
        ASSERT_EQ(wide[at], expected(first + i)) << first << " + " << i;
        ASSERT_EQ(narrow[at].bits, to_bf16(expected(first + i)).bits) << first << " + " << i;
      }
      EXPECT_EQ(wide.back(), 9);
      EXPECT_EQ(narrow.back().bits, 0x1234);
    }
  }
}

TEST_P(Nf4Isas, DequantisedNanIsNan) {
  const std::vector<std::uint8_t> codes(32, 0x7f);
  const float absmax = std::numeric_limits<float>::quiet_NaN();
  Nf4View view;
  view.codes = codes.data();
  view.absmax = &absmax;
  std::vector<Bf16> out(64);
  nf4_dequantise_bf16(view, 0, 64, out.data());
  for (const Bf16 v : out) EXPECT_TRUE(std::isnan(to_float(v)));
}

INSTANTIATE_TEST_SUITE_P(All, Nf4Isas,
                         testing::Values(Nf4Isa::scalar, Nf4Isa::avx2, Nf4Isa::avx512),
                         [](const auto& test) {
                           return test.param == Nf4Isa::scalar ? "scalar"
                                  : test.param == Nf4Isa::avx2 ? "avx2"
                                                               : "avx512";
                         });

/// Distance to the best value of the map, and to the one that was chosen.
std::pair<double, double> distances(float value, std::uint8_t chosen) {
  double best = 10;
  for (const float v : nf4_dynamic_map()) {
    best = std::min(best, std::abs(static_cast<double>(v) - value));
  }
  return {best, std::abs(static_cast<double>(nf4_dynamic_map()[chosen]) - value)};
}

TEST(Nf4DoubleQuantisation, TakesTheNearestValueOfTheMap) {
  // Blocks whose largest value is 1, so that what is stored is the value itself.
  std::vector<float> absmax = normal_values(256 * 400, 11);
  for (float& v : absmax) v = std::clamp(v * 25, -0.999F, 0.999F);
  for (std::size_t i = 0; i < absmax.size(); i += 256) absmax[i] = 1;
  const auto blocks = static_cast<std::int64_t>(absmax.size());
  std::vector<std::uint8_t> table(absmax.size()), nearest(absmax.size());
  std::vector<float> nested(400);
  nf4_quantise_absmax(absmax.data(), blocks, 0, table.data(), nested.data());
  nf4_quantise_absmax(absmax.data(), blocks, 0, nearest.data(), nested.data(),
                      Nf4ScaleRule::nearest);
  EXPECT_EQ(nested, std::vector<float>(400, 1.0F));
  int different = 0;
  for (std::size_t i = 0; i < absmax.size(); ++i) {
    const auto [best, found] = distances(absmax[i], nearest[i]);
    EXPECT_NEAR(found, best, 1e-7) << i;
    // The table's step is 2/65535 wide: at most that much worse than the best.
    EXPECT_LE(distances(absmax[i], table[i]).second, best + 3.2e-5) << i;
    different += table[i] != nearest[i] ? 1 : 0;
  }
  EXPECT_GT(different, 0);  // the two rules are not the same
  EXPECT_LT(different, 2000);
}

TEST(Nf4DoubleQuantisation, EqualScalesAreKept) {
  const std::vector<float> absmax(300, 0.25F);
  std::vector<std::uint8_t> q(300);
  std::vector<float> nested(2), decoded(300);
  const float offset = nf4_absmax_offset(absmax.data(), 300);
  EXPECT_EQ(offset, 0.25F);
  nf4_quantise_absmax(absmax.data(), 300, offset, q.data(), nested.data());
  nf4_dequantise_absmax(q.data(), nested.data(), offset, 0, 300, decoded.data());
  EXPECT_EQ(decoded, absmax);
  EXPECT_EQ(nf4_absmax_offset(nullptr, 0), 0.0F);
}

}  // namespace
}  // namespace poros
