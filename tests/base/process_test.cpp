// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/subprocess.hpp"

namespace poros {
namespace {

TEST(RunProcess, KeepsOutputAndExitCodeApart) {
  const ProcessResult result =
      run_process({"sh", "-c", "echo out; echo err >&2; exit 7"}, 20, {{"X", "1"}});
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_EQ(result.out, "out\n");
  EXPECT_EQ(result.err, "err\n");
}

TEST(RunProcess, EnvironmentIsAddedAndArgumentsAreNotInterpreted) {
  const ProcessResult result =
      run_process({"sh", "-c", "printf '%s|%s' \"$POROS_X\" \"$1\"", "_", "a b; $(c)"}, 20,
                  {{"POROS_X", "a value"}});
  EXPECT_EQ(result.out, "a value|a b; $(c)");
}

TEST(RunProcess, SignalIsNamed) {
  EXPECT_EQ(run_process({"sh", "-c", "kill -9 $$"}, 20).exit_code, 128 + 9);
}

TEST(RunProcess, TimeoutEndsTheWholeGroup) {
  const double start = monotonic_s();
  const ProcessResult result = run_process({"sh", "-c", "sleep 600 & sleep 600"}, 0.3);
  EXPECT_TRUE(result.timed_out);
  EXPECT_LT(monotonic_s() - start, 20);
}

TEST(RunProcess, OutputIsCappedAndStillRead) {
  const ProcessResult result = run_process({"sh", "-c", "head -c 3000000 /dev/zero"}, 20, {}, 1000);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out.size(), 1000U);
}

TEST(RunProcess, MissingProgramIsAnError) {
  EXPECT_THROW((void)run_process({"/no/such/program"}, 5), Error);
}

}  // namespace
}  // namespace poros
