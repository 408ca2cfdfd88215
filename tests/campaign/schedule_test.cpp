// SPDX-License-Identifier: Apache-2.0
// 10,000 cells on 64 GPUs of 4 types, in virtual time.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include "simulated_schedule.hpp"

namespace poros::testing {
namespace {
namespace fs = std::filesystem;

class Schedule : public ::testing::Test {
 protected:
  /// The journal takes a sync a cell: in memory where there is a /dev/shm.
  static ScheduleFigures simulate(const ScheduleOptions& options) {
    const fs::path below = ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : fs::temp_directory_path();
    std::string pattern = (below / "poros-schedule.XXXXXX").string();
    const fs::path dir = ::mkdtemp(pattern.data());
    const ScheduleFigures figures = simulate_schedule(options, dir);
    fs::remove_all(dir);
    return figures;
  }
};

TEST_F(Schedule, IsWithinFivePercentOfTheLowerBound) {
  for (const std::uint32_t seed : {1U, 2U, 3U}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const ScheduleFigures figures = simulate({.seed = seed});
    ASSERT_EQ(figures.types.size(), 4U);
    for (const ScheduleFigures::Type& type : figures.types) {
      EXPECT_GE(type.makespan_s, type.bound_s);  // else the bound is none
      EXPECT_LE(type.makespan_s, 1.05 * type.bound_s);
    }
    EXPECT_LE(figures.makespan_s, 1.05 * figures.bound_s);
    // Every cell ended but those that were lost three times, and none ran again.
    EXPECT_GE(figures.finished, 9'990);
    EXPECT_EQ(figures.twice, 0);
    EXPECT_GT(figures.lost, 200);
    EXPECT_GT(figures.failed, 100);
    EXPECT_GE(figures.set_aside, 4);  // the sick ones, and who lost three in a row by chance
  }
}

TEST_F(Schedule, LongestFirstIsWhatBringsItThere) {
  // 20 groups a GPU, so that the order counts.
  ScheduleOptions options{.groups = 20 * 64, .sick_gpu = false};
  const ScheduleFigures known = simulate(options);
  options.sizes_known = false;
  const ScheduleFigures unknown = simulate(options);
  EXPECT_LT(known.makespan_s / known.bound_s, unknown.makespan_s / unknown.bound_s);
}

}  // namespace
}  // namespace poros::testing
