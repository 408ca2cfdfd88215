// SPDX-License-Identifier: Apache-2.0
// The sums of a kernel trace, from activities made by hand.
#include <gtest/gtest.h>

#include "train/bench/kernel_trace.hpp"

namespace poros::bench {
namespace {

TEST(TraceSummary, TellsComputeCopiesAndIdleApart) {
  const TraceSummary trace =
      summarise({{"nvjet_tst_128x256", 1'000'000'000, 1'400'000'000, 0, false},
                 {"copy host to device", 1'300'000'000, 1'700'000'000, 8'000'000'000, true},
                 {"flash_bwd_kernel", 1'900'000'000, 2'000'000'000, 0, false},
                 {"flash_bwd_kernel", 1'950'000'000, 2'000'000'000, 0, false}});
  EXPECT_DOUBLE_EQ(trace.span_s, 1.0);
  EXPECT_DOUBLE_EQ(trace.compute_s, 0.5);
  EXPECT_DOUBLE_EQ(trace.exposed_copy_s, 0.3);
  EXPECT_NEAR(trace.idle_s, 0.2, 1e-12);
  EXPECT_DOUBLE_EQ(trace.copy_s, 0.4);
  EXPECT_DOUBLE_EQ(trace.copied_gb, 8.0);
  EXPECT_DOUBLE_EQ(trace.kinds.at("matrix products").seconds, 0.4);
  EXPECT_NEAR(trace.kinds.at("attention").seconds, 0.15, 1e-12);
  EXPECT_EQ(trace.kinds.at("attention").calls, 2);
  EXPECT_EQ(trace.kernels.size(), 3U);
}

TEST(TraceSummary, OfNothingIsNothing) {
  const TraceSummary trace = summarise({});
  EXPECT_EQ(trace.span_s, 0);
  EXPECT_TRUE(trace.kinds.empty());
}

}  // namespace
}  // namespace poros::bench
