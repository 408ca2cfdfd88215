// SPDX-License-Identifier: Apache-2.0
#include "analysis/compare.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace poros {
namespace {

/// One group of one model with one arm.
ReportModel one_arm(std::vector<double> times, double memory_mb, Outcome outcome = Outcome::ok) {
  ReportModel model;
  model.protocol = "shared";
  Group group;
  group.model = group.model_id = "tiny";
  group.precision = "nf4";
  group.hardware = "Some GPU";
  Arm arm;
  arm.method = "poros";
  arm.variant = "v";
  arm.outcome = outcome;
  arm.words = word(outcome);
  arm.memory_mb = memory_mb;
  if (!times.empty()) arm.s_per_step = median(times);
  arm.pass_times = std::move(times);
  group.arms.push_back(arm);
  model.groups.push_back(group);
  return model;
}

Comparison compare(const ReportModel& a, const ReportModel& b, CompareOptions options = {}) {
  return compare_campaigns(a, "a", b, "b", options);
}

TEST(Compare, SlowerBeyondNoiseIsARegression) {
  CompareOptions five;
  five.fail_share = 0.05;
  const Comparison c =
      compare(one_arm({1.0, 1.01, 0.99}, 1000), one_arm({1.2, 1.21, 1.19}, 1000), five);
  ASSERT_EQ(c.cells.size(), 1u);
  EXPECT_EQ(c.cells[0].verdict, Verdict::slower);
  EXPECT_NEAR(*c.cells[0].time_ratio, 1.2, 1e-12);
  // Medians of resamples lie within the lists: 1.19 / 1.01 to 1.21 / 0.99.
  EXPECT_GE(*c.cells[0].time_low, 1.19 / 1.01 - 1e-12);
  EXPECT_LE(*c.cells[0].time_high, 1.21 / 0.99 + 1e-12);
  EXPECT_EQ(c.regressions, 1u);
}

TEST(Compare, OverlapIsNoiseAndOnePassIsUndecided) {
  EXPECT_EQ(compare(one_arm({1.0, 1.2, 1.1}, 1), one_arm({1.05, 1.25, 1.1}, 1)).cells[0].verdict,
            Verdict::same);
  EXPECT_EQ(compare(one_arm({1.0}, 1), one_arm({2.0}, 1)).cells[0].verdict, Verdict::undecided);
  EXPECT_EQ(compare(one_arm({1.0, 1.0}, 1), one_arm({0.5, 0.5}, 1)).cells[0].verdict,
            Verdict::faster);
}

TEST(Compare, MoreMemoryAndALostCellAreRegressions) {
  CompareOptions five;
  five.fail_share = 0.05;
  const ReportModel a = one_arm({1, 1}, 1000);
  EXPECT_EQ(compare(a, one_arm({1, 1}, 1049), five).regressions, 0u);
  EXPECT_EQ(compare(a, one_arm({1, 1}, 1051), five).regressions, 1u);
  const Comparison lost = compare(a, one_arm({}, 1000, Outcome::oom), five);
  EXPECT_EQ(lost.cells[0].verdict, Verdict::lost);
  EXPECT_EQ(lost.regressions, 1u);
  EXPECT_EQ(compare(a, one_arm({9, 9}, 1, Outcome::flagged), five).cells[0].verdict,
            Verdict::not_compared);
}

TEST(Compare, OtherHardwareOrProtocolOnlyWhenAsked) {
  const ReportModel a = one_arm({1, 1}, 1);
  ReportModel b = a;
  b.groups[0].hardware = "Another GPU";
  EXPECT_THROW((void)compare(a, b), Error);
  EXPECT_EQ(compare(a, b, {true, false, {}}).compared, 1u);
  b = a;
  b.protocol = "lean";
  EXPECT_THROW((void)compare(a, b), Error);
  EXPECT_EQ(compare(a, b, {false, true, {}}).compared, 1u);
}

TEST(Compare, NamesAreEscapedInJunit) {
  ReportModel a = one_arm({1, 1}, 1);
  a.groups[0].model = "\"><script>";
  const std::string xml = compare_junit({compare(a, a)});
  EXPECT_EQ(xml.find("<script"), std::string::npos);
  EXPECT_NE(xml.find("&lt;script&gt;"), std::string::npos);
}

}  // namespace
}  // namespace poros
