// SPDX-License-Identifier: Apache-2.0
#include "analysis/statistics.hpp"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace poros {
namespace {

TEST(Statistics, MedianOfOddEvenAndSingle) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
  EXPECT_EQ(median({7}), 7);
}

// Reference: numpy.quantile([15, 20, 35, 40, 50], q), default method "linear".
TEST(Statistics, QuantilesAreNumpys) {
  const std::vector<double> values{50, 15, 40, 20, 35};
  EXPECT_DOUBLE_EQ(quantile(values, 0), 15);
  EXPECT_DOUBLE_EQ(quantile(values, 0.25), 20);
  EXPECT_DOUBLE_EQ(quantile(values, 0.4), 29);
  EXPECT_DOUBLE_EQ(quantile(values, 0.75), 40);
  EXPECT_DOUBLE_EQ(quantile(values, 0.9), 46);
  EXPECT_DOUBLE_EQ(quantile(values, 1), 50);
  EXPECT_DOUBLE_EQ(quantile({2}, 0.3), 2);
}

TEST(Statistics, DeviationDividesByN) {
  EXPECT_DOUBLE_EQ(stddev({2, 4, 4, 4, 5, 5, 7, 9}), 2);
  EXPECT_DOUBLE_EQ(stddev({3}), 0);
}

TEST(Statistics, RefuseNothing) {
  EXPECT_THROW((void)median({}), Error);
  EXPECT_THROW((void)quantile({}, 0.5), Error);
  EXPECT_THROW((void)mean({}), Error);
  EXPECT_THROW((void)stddev({}), Error);
  EXPECT_THROW((void)bootstrap_ratio({}, {1}), Error);
  EXPECT_THROW((void)bootstrap_ratio({1}, {}), Error);
  EXPECT_THROW((void)bootstrap_median({}), Error);
}

TEST(Bootstrap, OfConstantsIsAPoint) {
  const Interval interval = bootstrap_ratio({3, 3, 3}, {2, 2});
  EXPECT_EQ(interval.low, 1.5);
  EXPECT_EQ(interval.high, 1.5);
}

TEST(Bootstrap, IsTheSameEachTimeAndDependsOnTheSeed) {
  const std::vector<double> a{1.0, 1.1, 1.3, 0.9, 1.2}, b{0.5, 0.6, 0.55, 0.52};
  const Interval first = bootstrap_ratio(a, b), second = bootstrap_ratio(a, b);
  EXPECT_EQ(first.low, second.low);
  EXPECT_EQ(first.high, second.high);
  EXPECT_LE(first.low, median(a) / median(b));
  EXPECT_GE(first.high, median(a) / median(b));
  EXPECT_GE(first.low, 0.9 / 0.6);
  EXPECT_LE(first.high, 1.3 / 0.5);
}

// With three values a resample's median is the least one with probability 7/27, the greatest one
// likewise: both tails hold more than 2.5 %, so the 95 % interval reaches from least to greatest.
TEST(Bootstrap, OfThreePassesReachesFromLeastToGreatest) {
  const Interval interval = bootstrap_median({1.0, 1.1, 1.4});
  EXPECT_EQ(interval.low, 1.0);
  EXPECT_EQ(interval.high, 1.4);
}

// How often the interval holds the true median, over many samples of a known distribution.
TEST(Bootstrap, CoversAboutAsOftenAsItSays) {
  std::uint64_t state = 1;
  const auto uniform = [&] {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<double>(state >> 11) * 0x1.0p-53;
  };
  int covered = 0;
  constexpr int kTrials = 400;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> sample(25);
    for (double& value : sample) value = -std::log(1 - uniform());  // exponential, median ln 2
    const Interval interval = bootstrap_median(sample, 0.95, 400);
    covered += interval.low <= std::log(2.0) && std::log(2.0) <= interval.high ? 1 : 0;
  }
  EXPECT_GT(covered, kTrials * 0.88);
  EXPECT_LT(covered, kTrials * 0.99);
}

}  // namespace
}  // namespace poros
