// SPDX-License-Identifier: Apache-2.0
// Cells that fail, and what their records say.
#include <fstream>

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include "base/files.hpp"
#include "driver_fixture.hpp"

namespace poros::testing {
namespace {
namespace fs = std::filesystem;

using Calls = std::vector<std::string>;

struct Fault_ {
  const char* mode;
  const char* status;
  const char* reason;
  const char* message;  // a part of it
  int exit_code;
};

class DriverFaults : public DriverTest, public ::testing::WithParamInterface<Fault_> {};

TEST_P(DriverFaults, HasANameAndDoesNotTouchTheOtherArm) {
  const Fault_& fault = GetParam();
  write_spec("[poros, resident]", 2, 20, "timeouts: {load: 1, step: 1, cell: 30}\n");
  set_cells({{"poros", {{"mode", fault.mode}}}});
  const ProcessResult result = drive();
  EXPECT_EQ(result.exit_code, fault.exit_code) << result.out << result.err;
  const RunArtifact poros = artifact("poros");
  EXPECT_EQ(poros.status, fault.status);
  EXPECT_EQ(poros.reason.value_or(""), fault.reason);
  EXPECT_EQ(poros.oom, std::string(fault.status) == "oom");
  EXPECT_NE(poros.error_message.value_or("").find(fault.message), std::string::npos)
      << poros.error_message.value_or("");
  EXPECT_FALSE(poros.s_per_step.has_value());
  EXPECT_EQ(poros.n_passes, 0);
  EXPECT_EQ(artifact("resident").status, "ok");
  EXPECT_EQ(artifact("resident").n_passes, 2);
  // A pass that did not end ok ends its cell; without both arms there is no parity.
  const Calls made = calls();
  const auto count = [&](const std::string& begin) {
    return std::count_if(made.begin(), made.end(),
                         [&](const std::string& call) { return call.rfind(begin, 0) == 0; });
  };
  EXPECT_EQ(count("poros timed 0"), std::string(fault.reason) == "lost" ? 3 : 1);
  EXPECT_EQ(count("poros timed 1"), 0);
  EXPECT_EQ(count("poros parity"), 0);

  // Run again: only what was lost is tried once more, without being asked to.
  forget_calls();
  set_cells(Json::object());
  const ProcessResult again = drive();
  if (std::string(fault.reason) == "lost") {
    EXPECT_EQ(again.exit_code, 0) << again.err;
    EXPECT_EQ(calls().size(), 4U);  // two passes, two for parity
  } else {
    EXPECT_EQ(again.exit_code, fault.exit_code);
    EXPECT_EQ(calls(), Calls{});
    if (std::string(fault.status) == "skipped") return;
    ASSERT_EQ(drive({"--retry"}).exit_code, 0);
    EXPECT_EQ(calls(), (Calls{"poros timed 0 2", "poros timed 1 1", "poros parity 0 1",
                              "resident parity 0 1"}));
  }
  expect_whole(2, 2);
  EXPECT_EQ(artifact("poros").status, "ok");
  EXPECT_EQ(parity().at("bitwise_exact"), true);
}

INSTANTIATE_TEST_SUITE_P(
    Modes, DriverFaults,
    ::testing::Values(Fault_{"silent", "error", "no_result", "left no result", 1},
                      Fault_{"late_failure", "error", "exit_code", "exit code 1", 1},
                      Fault_{"crash", "error", "signal", "signal 6", 1},
                      Fault_{"garbage", "error", "bad_result", "result of poros", 1},
                      Fault_{"foreign", "error", "bad_result", "another pass", 1},
                      Fault_{"oom", "oom", "", "asked for too much", 0},
                      Fault_{"skipped", "skipped", "unsupported", "not on this machine", 0},
                      Fault_{"hang", "error", "timeout", "longer than 1 s", 1},
                      Fault_{"kill_supervisor", "error", "lost", "supervisor", 1}),
    [](const auto& tested) { return std::string(tested.param.mode); });

TEST_F(DriverTest, ALostAttemptIsTriedAgainAtOnce) {
  set_cells({{"poros", {{"mode", "kill_supervisor"}, {"mode_attempts", 1}}}});
  EXPECT_EQ(drive().exit_code, 0);
  const Calls made = calls();
  EXPECT_EQ(Calls(made.begin(), made.begin() + 2), (Calls{"poros timed 0 1", "poros timed 0 2"}));
  expect_whole(2, 2);
}

TEST_F(DriverTest, AFullDiskStopsTheRunAndLosesNothing) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, for a small file system";
  fs::create_directories(dir_);
  if (::mount("tmpfs", dir_.c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "can't mount a tmpfs here";
  }
  ASSERT_EQ(drive({"--passes", "1"}).exit_code, 1) << "the inputs alone are larger than 1 MiB";
  ::umount(dir_.c_str());
  // Room for the inputs and a few records, then none.
  ASSERT_EQ(::mount("tmpfs", dir_.c_str(), "tmpfs", 0, "size=8m"), 0);
  ASSERT_EQ(drive({"--passes", "1"}).exit_code, 0);
  const std::size_t before = receipts().size();
  const std::string journal = read_file(dir_ / "results.jsonl");
  {
    std::ofstream filler(dir_ / "filler", std::ios::binary);
    const std::string block(4096, 'x');
    while (filler << block << std::flush) {
    }
  }
  forget_calls();
  const ProcessResult full = drive();
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_NE(full.err.find("No space left"), std::string::npos) << full.err;
  EXPECT_NE(full.err.find("run the same command again"), std::string::npos) << full.err;
  EXPECT_LE(calls().size(), 1U);  // nothing new is started after the first failed write
  EXPECT_EQ(read_file(dir_ / "results.jsonl").substr(0, journal.size()), journal);
  EXPECT_GE(receipts().size(), before);
  fs::remove(dir_ / "filler");
  const ProcessResult after = drive();
  EXPECT_EQ(after.exit_code, 0) << after.err;
  expect_whole(2, 2);
  ::umount(dir_.c_str());
}

TEST_F(DriverTest, APlaceThatCannotBeAFolderIsSaid) {
  std::ofstream(dir_) << "a file\n";
  const ProcessResult result = drive();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find(dir_.string()), std::string::npos) << result.err;
  EXPECT_EQ(calls(), Calls{});
}

TEST_F(DriverTest, AChangedInputIsRefused) {
  ASSERT_EQ(drive({"--passes", "1"}).exit_code, 0);
  const fs::path tokens = dir_ / "inputs" / (artifact("poros").token_sha256 + ".tokens");
  std::ofstream(tokens, std::ios::app) << "x";
  const ProcessResult result = drive();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE((result.out + result.err).find("the file was changed"), std::string::npos);
}

}  // namespace
}  // namespace poros::testing
