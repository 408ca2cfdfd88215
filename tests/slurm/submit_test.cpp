// SPDX-License-Identifier: Apache-2.0
// submit, cancel and status against a Slurm that refuses, is down, or is absent.
#include <filesystem>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "campaign/slurm_queue.hpp"
#include "campaign/slurm_submit.hpp"
#include "fake_slurm.hpp"

namespace poros {
namespace {
namespace fs = std::filesystem;

class Submit : public ::testing::Test {
 protected:
  SubmitOptions options() {
    SubmitOptions made;
    made.spec = write_spec(fake.folder(), "A100");
    made.cluster = write_profile(fake.folder()).string();
    made.output_dir = campaign();
    made.program = "/opt/poros";
    return made;
  }
  [[nodiscard]] fs::path campaign() const { return fake.folder() / "c"; }

  /// The message of a command that must fail, with its exit code.
  template <typename Call>
  static std::string failure(int exit_code, const Call& call) {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), exit_code) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "it succeeded";
    return {};
  }

  std::size_t records() {
    std::error_code error;
    std::size_t count = 0;
    for (const auto& entry : fs::directory_iterator(campaign() / "slurm/jobs", error)) {
      count += entry.path().extension() == ".json" ? 1 : 0;
    }
    return count;
  }

  FakeSlurm fake;
};

TEST_F(Submit, ADryRunTouchesNothing) {
  SubmitOptions made = options();
  made.dry_run = true;
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(submit_campaign(made), 0);
  const std::string text = ::testing::internal::GetCapturedStdout();
  EXPECT_NE(text.find("#SBATCH --gpus-per-node=\"a100:2\""), std::string::npos) << text;
  EXPECT_FALSE(fs::exists(campaign()));
  for (const char* name : {"sbatch", "squeue", "scontrol"}) EXPECT_TRUE(fake.calls(name).empty());
}

TEST_F(Submit, JobsAreHeldUntilTheLastIsAcceptedAndThenRecorded) {
  EXPECT_EQ(submit_campaign(options()), 0);
  ASSERT_EQ(fake.calls("sbatch").size(), 2u);
  EXPECT_EQ(fake.calls("sbatch")[0][1], "--hold");
  EXPECT_EQ(fake.calls("sbatch")[1][2], "--dependency=afterany:101");
  ASSERT_EQ(fake.calls("scontrol").size(), 1u);
  EXPECT_EQ(fake.calls("scontrol")[0], (std::vector<std::string>{"release", "101", "102"}));
  const auto jobs = recorded_jobs(campaign());
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_EQ(jobs[0].label, "a100");
  EXPECT_EQ(jobs[1].role, "gather");
  EXPECT_TRUE(fs::exists(campaign() / "slurm/a100.sh"));
}

TEST_F(Submit, TwiceSaysWhatIsQueuedAndSubmitsNothing) {
  EXPECT_EQ(submit_campaign(options()), 0);
  const std::string name = job_name_prefix(campaign(), "s1");
  fake.command("squeue", "echo '101|" + name + "-a100|RUNNING|None|n[1-2]|2030-01-01T00:00:00'; " +
                             "echo '7|someone-else|RUNNING|None|n3|N/A'");
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(submit_campaign(options()), 0);
  const std::string text = ::testing::internal::GetCapturedStdout();
  EXPECT_NE(text.find("already submitted"), std::string::npos) << text;
  EXPECT_NE(text.find("RUNNING"), std::string::npos) << text;
  EXPECT_EQ(fake.calls("sbatch").size(), 2u);
}

TEST_F(Submit, ARefusedJobTakesTheOthersWithIt) {
  // The second submission is refused, as with an account that may not use that partition.
  fake.command("sbatch",
               R"(n=$(cat "$state/n" 2>/dev/null || echo 100); n=$((n + 1)); echo $n >"$state/n"
[ $n = 102 ] && { echo 'sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified' >&2; exit 1; }
echo $n)");
  const std::string text = failure(kFailed, [&] { submit_campaign(options()); });
  EXPECT_NE(text.find("Invalid account"), std::string::npos) << text;
  ASSERT_EQ(fake.calls("scancel").size(), 1u);
  EXPECT_EQ(fake.calls("scancel")[0], std::vector<std::string>{"101"});
  EXPECT_TRUE(fake.calls("scontrol").empty());
  EXPECT_EQ(records(), 0u);
}

TEST_F(Submit, NothingIsSubmittedWhereTheQueueCanNotBeSeen) {
  fake.command("squeue",
               "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1");
  const std::string text = failure(kFailed, [&] { submit_campaign(options()); });
  EXPECT_NE(text.find("Unable to contact slurm controller"), std::string::npos) << text;
  EXPECT_TRUE(fake.calls("sbatch").empty());
  EXPECT_FALSE(fs::exists(campaign() / "slurm"));
}

TEST_F(Submit, AJobThatCanNotBeReleasedIsCancelled) {
  fake.command("scontrol", "echo 'scontrol: error' >&2; exit 1");
  failure(kFailed, [&] { submit_campaign(options()); });
  ASSERT_EQ(fake.calls("scancel").size(), 1u);
  EXPECT_EQ(records(), 0u);
}

TEST_F(Submit, AnAnswerWithoutAJobIdIsNoSubmission) {
  fake.command("sbatch", "echo 'Submitted, have a nice day'");
  const std::string text = failure(kFailed, [&] { submit_campaign(options()); });
  EXPECT_NE(text.find("printed no job id"), std::string::npos) << text;
  EXPECT_EQ(records(), 0u);
}

TEST_F(Submit, AbsentCommandsAreNamed) {
  fake.remove("squeue");
  const std::string text = failure(kFailed, [&] { submit_campaign(options()); });
  EXPECT_NE(text.find("squeue can't be started"), std::string::npos) << text;
  EXPECT_NE(text.find("login node"), std::string::npos) << text;
}

TEST_F(Submit, AGpuThatTheClusterLacksIsWrongInput) {
  SubmitOptions made = options();
  made.spec = write_spec(fake.folder(), "RTX 5090", "other.yaml");
  const std::string text = failure(kWrongInput, [&] { submit_campaign(made); });
  EXPECT_NE(text.find("6 cells are for the GPU \"RTX 5090\""), std::string::npos) << text;
  EXPECT_NE(text.find("A100, B300"), std::string::npos) << text;
  EXPECT_FALSE(fs::exists(campaign()));
}

TEST_F(Submit, WaitingGivesTheWorstExitCodeOfTheJobs) {
  SubmitOptions made = options();
  made.wait = true;
  EXPECT_EQ(submit_campaign(made), kFailed);  // 101 and 102 left no word
  const auto say = [&](const char* start, const char* id, int code) {
    write_text(campaign() / "slurm/ends" / (std::string(start) + ".json"),
               "{\"job_id\": \"" + std::string(id) + "\", \"restart\": " + (start + 4) +
                   ", \"exit_code\": " + std::to_string(code) + ", \"outcome\": \"x\"}");
  };
  say("103.0", "103", 75);
  say("103.1", "103", 0);  // went on after the first start
  say("104.0", "104", 0);
  EXPECT_EQ(submit_campaign(made), kDone);  // as 103 and 104; 101 and 102 are of an old submission
  say("105.0", "105", 1);
  say("106.0", "106", 0);
  EXPECT_EQ(submit_campaign(made), kFailed);
  say("107.0", "107", 75);  // went on as job 109
  write_text(campaign() / "slurm/jobs/109.json",
             R"({"job_id": "109", "role": "work", "continues": "107"})");
  say("109.1", "109", 0);
  say("108.0", "108", 0);
  EXPECT_EQ(submit_campaign(made), kDone);
}

TEST_F(Submit, CancelEndsTheGatheringJobFirst) {
  EXPECT_NE(failure(kWrongInput, [&] { cancel_campaign(campaign(), false); })
                .find("no batch jobs were submitted"),
            std::string::npos);
  EXPECT_EQ(submit_campaign(options()), 0);
  const std::string name = job_name_prefix(campaign(), "s1");
  fake.command("squeue",
               "echo '101_[2-3]|" + name + "-a100|PENDING|Priority||N/A'; echo '101_1|" + name +
                   "-a100|RUNNING|None|n1|N/A'; echo '102|" + name +
                   "-gather|PENDING|Dependency||N/A'; echo '9|other|RUNNING|None|n1|N/A'");
  EXPECT_EQ(cancel_campaign(campaign(), false), 0);
  ASSERT_EQ(fake.calls("scancel").size(), 1u);
  EXPECT_EQ(fake.calls("scancel")[0], (std::vector<std::string>{"102", "101"}));
  fake.command("scancel", "echo 'scancel: error: Kill job error' >&2; exit 1");
  EXPECT_NE(failure(kFailed, [&] { cancel_campaign(campaign(), false); }).find("Kill job error"),
            std::string::npos);
}

TEST_F(Submit, StatusComesFromSlurmOrFromFilesAlone) {
  EXPECT_TRUE(slurm_status(campaign()).is_null());
  EXPECT_EQ(submit_campaign(options()), 0);
  write_text(
      campaign() / "slurm/ends/101.0.json",
      R"({"job_id": "101", "restart": 0, "exit_code": 75, "outcome": "the time limit is near; goes on later"})");
  const std::string name = job_name_prefix(campaign(), "s1");
  fake.command("squeue", "echo '101|" + name + "-a100|PENDING|BeginTime||N/A'");
  const Json queued = slurm_status(campaign());
  ASSERT_EQ(queued.at("jobs").size(), 2u);
  EXPECT_EQ(queued.at("jobs")[0].at("state"), "PENDING");
  EXPECT_EQ(queued.at("jobs")[0].at("reason"), "BeginTime");
  EXPECT_EQ(queued.at("jobs")[0].at("outcome"), "the time limit is near; goes on later");
  EXPECT_EQ(queued.at("jobs")[1].at("state"), "UNKNOWN");  // sacct is down, and it left no word
  EXPECT_TRUE(queued.at("problem").is_null());

  fake.command("sacct", "echo '102|NODE_FAIL'");
  EXPECT_EQ(slurm_status(campaign()).at("jobs")[1].at("state"), "NODE_FAIL");
  bool dated = false;
  const auto asked = fake.calls("sacct");
  for (const std::string& word : asked.back()) {
    dated = dated || word.starts_with("--starttime=20");
  }
  EXPECT_TRUE(dated);

  // An array: tasks that wait stand in one line of squeue, those that ended have left their word.
  write_text(campaign() / "slurm/ends/101_0.0.json",
             R"({"job_id": "101_0", "restart": 1, "exit_code": 0, "outcome": "complete"})");
  fake.command("squeue", "echo '101_[1-3]|" + name + "-a100|PENDING|Priority||N/A'");
  const Json array = slurm_status(campaign());
  EXPECT_EQ(array.at("jobs")[0].at("id"), "101_[1-3]");
  EXPECT_TRUE(has_live_jobs(array));
  bool ended = false;
  for (const Json& job : array.at("jobs")) {
    ended = ended || (job.at("id") == "101_0" && job.at("state") == "ENDED" &&
                      job.at("starts") == 2 && job.at("outcome") == "complete");
  }
  EXPECT_TRUE(ended) << array.dump(1);

  fake.remove("squeue");
  const Json blind = slurm_status(campaign());
  EXPECT_TRUE(blind.at("problem").is_string());
  EXPECT_EQ(blind.at("jobs")[0].at("state"), "UNKNOWN");
  EXPECT_NE(slurm_status_text(blind).find("Slurm can't be asked"), std::string::npos);

  write_text(campaign() / "slurm/jobs/103.json", "{\"job_id\": \"../x\"}");
  write_text(campaign() / "slurm/jobs/104.json", "torn");
  EXPECT_EQ(recorded_jobs(campaign()).size(), 2u);
}

}  // namespace
}  // namespace poros
