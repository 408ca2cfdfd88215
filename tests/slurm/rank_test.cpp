// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "campaign/slurm_rank.hpp"

namespace poros {
namespace {

class Rank : public ::testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  static void clear() {
    for (const char* name :
         {"POROS_GPU_TYPE", "POROS_NODE_TYPES", "SLURMD_NODENAME", "SLURM_JOB_END_TIME",
          "POROS_WARN_S", "SLURM_JOB_ID", "SLURM_RESTART_COUNT", "POROS_CONTINUES"}) {
      ::unsetenv(name);
    }
  }
};

TEST_F(Rank, ItsTypeIsThatOfTheJobOrOfItsNode) {
  EXPECT_EQ(announced_gpu_type(), "");
  ::setenv("POROS_NODE_TYPES", "n1=A100,n10=3090,n3=B300,", 1);
  ::setenv("SLURMD_NODENAME", "n3", 1);
  EXPECT_EQ(announced_gpu_type(), "B300");
  ::setenv("SLURMD_NODENAME", "n1", 1);
  EXPECT_EQ(announced_gpu_type(), "A100");
  ::setenv("SLURMD_NODENAME", "n2", 1);
  EXPECT_EQ(announced_gpu_type(), "");
  ::setenv("POROS_GPU_TYPE", "5090", 1);
  EXPECT_EQ(announced_gpu_type(), "5090");
}

TEST_F(Rank, TheEndIsKnownLessTheWarningTime) {
  EXPECT_FALSE(job_seconds_left());
  ::setenv("SLURM_JOB_END_TIME", std::to_string(std::time(nullptr) + 500).c_str(), 1);
  ASSERT_TRUE(job_seconds_left());
  EXPECT_NEAR(*job_seconds_left(), 500, 5);
  ::setenv("POROS_WARN_S", "200", 1);
  EXPECT_NEAR(*job_seconds_left(), 300, 5);
  ::setenv("POROS_WARN_S", "900", 1);
  EXPECT_LT(*job_seconds_left(), -390);
  for (const char* odd : {"", "soon", "12x", "-5", "0"}) {
    ::setenv("SLURM_JOB_END_TIME", odd, 1);
    EXPECT_FALSE(job_seconds_left()) << odd;
  }
}

TEST_F(Rank, AnEarlierStartOfTheJobIsTakenOverAndNothingElse) {
  const auto holder = [](const char* job, const char* restart) {
    LeaseHolder one;
    one.host = "n9";
    one.job = job;
    one.restart = restart;
    return one;
  };
  EXPECT_FALSE(is_earlier_start(holder("", "")));
  ::setenv("SLURM_JOB_ID", "12", 1);
  EXPECT_FALSE(is_earlier_start(holder("12", "")));  // this start itself
  EXPECT_FALSE(is_earlier_start(holder("", "")));
  ::setenv("SLURM_RESTART_COUNT", "2", 1);
  EXPECT_TRUE(is_earlier_start(holder("12", "")));
  EXPECT_TRUE(is_earlier_start(holder("12", "1")));
  EXPECT_FALSE(is_earlier_start(holder("12", "2")));
  EXPECT_FALSE(is_earlier_start(holder("12", "3")));
  EXPECT_FALSE(is_earlier_start(holder("12", "x")));
  EXPECT_FALSE(is_earlier_start(holder("13", "0")));
  ::setenv("POROS_CONTINUES", "13", 1);
  EXPECT_TRUE(is_earlier_start(holder("13", "4")));
}

TEST_F(Rank, WhatAnEarlierStartStillWritesIsNotRead) {
  std::string name = "/tmp/poros-rank-XXXXXX";
  ASSERT_NE(::mkdtemp(name.data()), nullptr);
  const std::filesystem::path journal = std::filesystem::path(name) / "results.jsonl";
  ::setenv("SLURM_JOB_ID", "12", 1);
  Receipt receipt;
  receipt.kind = "attempt";
  receipt.key = std::string(64, 'a');
  receipt.artifact_path = "a.json";
  receipt.artifact_sha256 = std::string(64, '0');
  JournalWriter old = JournalWriter::open(journal, batch_journal_options(journal));
  old.append(receipt);
  // The same job, requeued, while the old start lives on: its own process, here.
  EXPECT_THROW(static_cast<void>(JournalWriter::open(journal, batch_journal_options(journal))),
               Error);
  ::setenv("SLURM_RESTART_COUNT", "1", 1);
  JournalWriter now = JournalWriter::open(journal, batch_journal_options(journal));
  EXPECT_TRUE(now.took_over());
  EXPECT_THROW(old.append(receipt), Error);
  now.append(receipt);
  now.close();
  EXPECT_EQ(read_journal(journal).receipts.size(), 2u);
  std::filesystem::remove_all(name);
}

}  // namespace
}  // namespace poros
