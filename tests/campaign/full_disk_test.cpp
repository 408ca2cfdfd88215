// SPDX-License-Identifier: Apache-2.0
// A file system that fills, and one that becomes read-only. In a mount namespace of its own, so
// that nothing stays mounted; exit code 77 (skipped) where the kernel allows none.
//
// | damage                           | exit | message                            | records  |
// |----------------------------------|------|------------------------------------|----------|
// | 1 MiB that fills while cells run | 1    | No space left ... run the same     | all that |
// |                                  |      | command again; no new cell starts  | was said |
// | full from the command's start    | 1    | the same; no cell starts           | all      |
// | read-only folder                 | 1    | Read-only file system; none starts | all      |
// | read-only folder, status         | 0    | as ever                            | all      |
// | read-only folder, gather         | 1    | campaign.h5 and HDF5's error       | all      |
#include <fstream>

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include "base/files.hpp"
#include "campaign/campaign.hpp"
#include "driver_fixture.hpp"
#include "other_program.hpp"
#include "receipts/hdf5_store.hpp"
#include "receipts/journal.hpp"

namespace poros::testing {
namespace {
namespace fs = std::filesystem;

class FullDisk : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    fs::create_directories(dir_);
    ASSERT_EQ(::mount("tmpfs", dir_.c_str(), "tmpfs", 0, "size=1m"), 0);
  }
  void TearDown() override {
    ::umount2(dir_.c_str(), MNT_DETACH);
    DriverTest::TearDown();
  }
  void remount(unsigned long flags, const char* options) const {
    ASSERT_EQ(::mount("tmpfs", dir_.c_str(), "tmpfs", MS_REMOUNT | flags, options), 0);
  }
  [[nodiscard]] std::string text() const { return read_file(dir_ / kJournalName); }
};

TEST_F(FullDisk, OneMebibyteThatFillsStopsTheRunAndLosesNothing) {
  // Small adapters, many passes: some hundred records fill it.
  write_spec("[resident]", 400, 40, "parity: \"off\"\nlora: {rank: 1}\n");
  const ProcessResult full = drive();
  EXPECT_EQ(full.exit_code, 1) << full.out;
  EXPECT_NE(full.err.find("No space left"), std::string::npos) << full.err;
  EXPECT_NE(full.err.find(dir_.string()), std::string::npos) << full.err;
  EXPECT_NE(full.err.find("run the same command again"), std::string::npos) << full.err;
  // Each pass that was said to be done is there.
  const std::string kept = text();
  const std::size_t recorded = receipts("attempt").size();
  EXPECT_GE(recorded, 5U);
  EXPECT_NE(full.out.find(fmt::format("[{}/400]", recorded)), std::string::npos) << full.out;
  EXPECT_EQ(full.out.find(fmt::format("[{}/400]", recorded + 1)), std::string::npos) << full.out;
  EXPECT_LE(calls().size(), recorded + 1);

  // Still full: nothing is started, nothing lost.
  forget_calls();
  std::ofstream filler(dir_ / "filler", std::ios::binary);
  const std::string block(512, 'x');
  while (filler << block << std::flush) {
  }
  const ProcessResult still = drive();
  EXPECT_EQ(still.exit_code, 1);
  EXPECT_NE(still.err.find("No space left"), std::string::npos) << still.err;
  EXPECT_TRUE(calls().empty());
  EXPECT_EQ(text(), kept);

  // With room again the same command goes on.
  fs::remove(dir_ / "filler");
  remount(0, "size=32m");
  const ProcessResult after = drive({"--passes", std::to_string(recorded + 3)});
  EXPECT_EQ(after.exit_code, 0) << after.err;
  EXPECT_EQ(calls().size(), 3U);
  EXPECT_EQ(text().substr(0, kept.size()), kept);
  expect_whole(1, recorded + 3);
}

TEST_F(FullDisk, AReadOnlyFolderIsSaid) {
  write_spec("[resident]", 1, 8, "parity: \"off\"\nlora: {rank: 1}\n");
  ASSERT_EQ(drive().exit_code, 0);
  const std::string kept = text();
  forget_calls();
  remount(MS_RDONLY, "");
  const ProcessResult result = drive({"--passes", "2"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("Read-only file system"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find(dir_.string()), std::string::npos) << result.err;
  EXPECT_TRUE(calls().empty());
  EXPECT_EQ(text(), kept);
  // Looking at it needs no writing.
  EXPECT_EQ(campaign_status(dir_).at("counts").at("done"), 1);
  EXPECT_EQ(load_campaign_folder(dir_).cells.size(), 1U);
  try {
    static_cast<void>(gather(dir_));
    ADD_FAILURE() << "made a store in a read-only folder";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 1);
    EXPECT_NE(std::string(error.what()).find("campaign.h5"), std::string::npos) << error.what();
  }
  remount(0, "size=1m");
  EXPECT_EQ(drive({"--passes", "2"}).exit_code, 0);
  expect_whole(1, 2);
}

/// Root in a user namespace where this process is not root, then mounts of its
/// own.
bool enter_own_mounts() {
  const uid_t user = ::geteuid();
  const gid_t group = ::getegid();
  if (user != 0) {
    if (::unshare(CLONE_NEWUSER) != 0) return false;
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/uid_map") << "0 " << user << " 1";
    std::ofstream("/proc/self/gid_map") << "0 " << group << " 1";
  }
  return ::unshare(CLONE_NEWNS) == 0 &&
         ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

}  // namespace
}  // namespace poros::testing

int main(int argc, char** argv) {
  if (const auto code = poros::testing::other_program(argc, argv)) return *code;
  ::testing::InitGoogleTest(&argc, argv);
  if (!poros::testing::enter_own_mounts()) {
    std::fputs("skipped: no mount namespace can be made here\n", stderr);
    return 77;
  }
  return RUN_ALL_TESTS();
}
