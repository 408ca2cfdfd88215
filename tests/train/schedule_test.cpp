// SPDX-License-Identifier: Apache-2.0
// Schedules against transformers.get_scheduler (optimizer_figures.json, make_optimizer_figures.py).
#include "train/schedule.hpp"

#include <gtest/gtest.h>

#include "base/files.hpp"
#include "base/json.hpp"

namespace poros {
namespace {

TEST(Schedule, RatesEqualTheReference) {
  const std::string path = POROS_SOURCE_DIR "/tests/train/optimizer_figures.json";
  const Json figures = parse_json(read_file(path), path);
  int compared = 0;
  for (const Json& row : figures.at("schedules")) {
    const auto total = row.at("total").get<std::int64_t>();
    const Schedule schedule(row.at("name"), row.at("base"), row.at("warmup"), total);
    const auto rates = row.at("rates").get<std::vector<double>>();
    ASSERT_EQ(static_cast<std::int64_t>(rates.size()), total);
    for (std::size_t step = 0; step < rates.size(); ++step, ++compared) {
      // Both are computed in double; the cosine may differ in its last bit.
      EXPECT_NEAR(schedule.rate(static_cast<std::int64_t>(step)), rates[step], 1e-19)
          << row.at("name") << " warmup " << row.at("warmup") << " of " << total << " step "
          << step;
    }
  }
  EXPECT_EQ(compared, 3 * (12 + 12 + 1 + 5 + 1 + 25));
}

TEST(Schedule, WarmUpBeginsAtZeroAndEndsAtTheBaseRate) {
  const Schedule schedule("cosine", 1e-3, 4, 10);
  EXPECT_EQ(schedule.rate(0), 0.0);
  EXPECT_EQ(schedule.rate(2), 0.5e-3);
  EXPECT_EQ(schedule.rate(4), 1e-3);
  EXPECT_NEAR(schedule.rate(7), 0.5e-3, 1e-18);
  EXPECT_EQ(schedule.rate(10), 0.0);
}

TEST(Schedule, RefusesWhatItDoesNotKnow) {
  EXPECT_THROW(Schedule("polynomial", 1e-3, 0, 10), Error);
  EXPECT_THROW(Schedule("linear", 1e-3, -1, 10), Error);
}

}  // namespace
}  // namespace poros
