// SPDX-License-Identifier: Apache-2.0
// `poros bench run` from a YAML file to a report, with the real trainer and, where it is installed,
// the real PEFT. Needs the Python environment of scripts/bootstrap.sh for tokenising.
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/files.hpp"
#include "base/json.hpp"
#include "base/subprocess.hpp"
#include "receipts/campaign_store.hpp"
#include "receipts/journal.hpp"

namespace poros {
namespace {
namespace fs = std::filesystem;

std::string environment_or(const char* name, const fs::path& otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise.string();
}

bool can_import(const std::string& python, const std::string& modules) {
  if (!fs::exists(python)) return false;
  return run_process({python, "-c", "import " + modules}, 120).exit_code == 0;
}

class CampaignIntegration : public ::testing::Test {
 protected:
  void SetUp() override {
    const fs::path deps = fs::path(POROS_SOURCE_DIR) / ".deps";
    python_ = environment_or("POROS_PYTHON", deps / "python" / "bin" / "python");
    peers_python_ = environment_or("POROS_PEERS_PYTHON", deps / "peers" / "bin" / "python");
    if (!can_import(python_, "numpy, tokenizers")) {
      GTEST_SKIP() << python_ << " has no numpy and tokenizers; scripts/bootstrap.sh installs them";
    }
    std::string pattern = (fs::temp_directory_path() / "poros-integration.XXXXXX").string();
    root_ = ::mkdtemp(pattern.data());
    dir_ = root_ / "out";
    ::setenv("POROS_PYTHON", python_.c_str(), 1);
    ::setenv("POROS_CACHE_DIR", (root_ / "cache").c_str(), 1);
  }
  void TearDown() override {
    if (!root_.empty()) fs::remove_all(root_);
  }

  void write_spec(const std::string& methods, int steps, int passes) const {
    const fs::path configs = fs::path(POROS_SOURCE_DIR) / "configs";
    std::ofstream(root_ / "spec.yaml")
        << "spec_id: integration\ndevice: cpu\nmethods: " << methods
        << "\nmodels:\n  - model_id: " << (configs / "models" / "kjv-qwen2").string()
        << "\n    display_name: KJV\ntraining:\n  steps: " << steps << "\n  n_passes: " << passes
        << "\n  warmup_steps: 2\n  seq_len: 128\n  batch_size: 1\n"
           "  gradient_accumulation_steps: 2\n  learning_rate: 2.0e-3\n  lr_scheduler: constant\n"
           "  dataset:\n    path: "
        << (configs / "data" / "alice.txt").string()
        << "\n    format: text\nlora:\n  dropout: 0.0\nporos:\n  block_size: 1\n";
  }
  [[nodiscard]] std::vector<std::string> command() const {
    return {POROS_PROGRAM,  "bench",      "run", (root_ / "spec.yaml").string(),
            "--output-dir", dir_.string()};
  }
  static const CampaignCell* find(const Campaign& campaign, const std::string& method) {
    for (const CampaignCell& cell : campaign.cells) {
      if (cell.artifact.method == method) return &cell;
    }
    return nullptr;
  }

  std::string python_, peers_python_;
  fs::path root_, dir_;
};

TEST_F(CampaignIntegration, FromASpecToAReport) {
  const bool has_peft = can_import(peers_python_, "torch, transformers, peft, bitsandbytes");
  write_spec("[poros, resident, peft, unsloth]", 12, 1);
  ::setenv("POROS_PEERS_PYTHON", has_peft ? peers_python_.c_str() : "", 1);
  const ProcessResult result = run_process(command(), 500);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const Campaign campaign = load_campaign_folder(dir_);
  EXPECT_EQ(campaign.problems, std::vector<std::string>{});
  ASSERT_EQ(campaign.cells.size(), 4U);
  const RunArtifact& poros = find(campaign, "poros")->artifact;
  const RunArtifact& resident = find(campaign, "resident")->artifact;
  for (const RunArtifact* arm : {&poros, &resident}) {
    EXPECT_EQ(arm->status, "ok") << arm->error_message.value_or("");
    EXPECT_TRUE(arm->flags.empty()) << arm->reason.value_or("");
    EXPECT_GT(arm->s_per_step.value_or(0), 0);
    EXPECT_TRUE(std::isfinite(arm->mean_loss_last10.value_or(NAN)));
    EXPECT_LT(*arm->mean_loss_last10, *arm->first_step_loss);
  }
  EXPECT_EQ(*poros.first_step_loss, *resident.first_step_loss);  // bit for bit
  ASSERT_EQ(campaign.parity.size(), 1U);
  EXPECT_EQ(campaign.parity[0].fields.at("bitwise_exact"), true);
  EXPECT_EQ(campaign.parity[0].fields.at("steps"), 12);
  const RunArtifact& peft = find(campaign, "peft")->artifact;
  if (has_peft) {
    EXPECT_EQ(peft.status, "ok") << peft.error_message.value_or("");
    EXPECT_TRUE(peft.flags.empty()) << peft.reason.value_or("");
    EXPECT_NEAR(peft.first_step_loss.value_or(NAN), *resident.first_step_loss, 1e-3);
  } else {
    EXPECT_EQ(peft.reason.value_or(""), "not_installed");
  }
  EXPECT_EQ(find(campaign, "unsloth")->artifact.reason.value_or(""), "needs CUDA");
  for (const char* file : {"campaign.h5", "report.html", "report.md", "spec.json"}) {
    EXPECT_TRUE(fs::exists(dir_ / file)) << file;
  }
}

TEST_F(CampaignIntegration, AKilledDriverGoesOnWhereItStopped) {
  write_spec("[poros, resident]", 12, 2);
  const std::vector<std::string> words = command();
  const pid_t driver = ::fork();
  ASSERT_GE(driver, 0);
  if (driver == 0) {
    std::vector<char*> argv;
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  const fs::path journal = dir_ / kJournalName;
  for (int i = 0; i < 12'000; ++i) {  // until one pass is recorded: 120 s at most
    if (fs::exists(journal) && !read_journal(journal).receipts.empty()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ::kill(driver, SIGKILL);
  int status = 0;
  ::waitpid(driver, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status)) << "it ended before it could be killed";
  const std::vector<Receipt> before = read_journal(journal).receipts;
  ASSERT_GE(before.size(), 1U);
  const ProcessResult result = run_process(command(), 500);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const std::vector<Receipt> after = read_journal(journal).receipts;
  std::map<std::string, int> timed;
  for (const Receipt& receipt : after) {
    if (receipt.kind != "attempt" || receipt.fields.at("purpose") != "timed") continue;
    ++timed[receipt.key + dump_json(receipt.fields.at("pass"))];
  }
  EXPECT_EQ(timed.size(), 4U);
  for (const auto& [pass, count] : timed) EXPECT_EQ(count, 1);
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(to_line(after[i]), to_line(before[i]));
}

/// What a journal says, without times, places and the order in which ranks came: purpose, pass and
/// status of every record.
std::multiset<std::string> record_set(const fs::path& dir) {
  std::multiset<std::string> records;
  for (const Receipt& receipt : read_journal(dir / kJournalName).receipts) {
    std::string text = receipt.kind + " " + receipt.key;
    for (const char* name : {"purpose", "pass", "attempt", "status", "bitwise_exact"}) {
      if (receipt.fields.contains(name)) text += " " + dump_json(receipt.fields.at(name));
    }
    records.insert(text);
  }
  return records;
}

TEST_F(CampaignIntegration, FourRanksLeaveTheRecordsOfOneProcess) {
  if (run_process({"mpirun", "--version"}, 20).exit_code != 0) GTEST_SKIP() << "no mpirun";
  write_spec("[poros, resident]", 6, 1);
  std::ofstream(root_ / "spec.yaml", std::ios::app)
      << "hardware:\n  - gpu_name: slot-a\n  - gpu_name: slot-b\n  - gpu_name: slot-c\n";
  ::setenv("POROS_THREADS", "1", 1);
  const ProcessResult alone = run_process(command(), 200);
  ASSERT_EQ(alone.exit_code, 0) << alone.out << alone.err;
  const std::multiset<std::string> expected = record_set(dir_);
  EXPECT_EQ(expected.size(), 3U * 7U);  // 2 timed, 2 parity passes, 2 cells, 1 parity a group
  const ProcessResult ranks = run_process(
      {"mpirun", "-n", "4", "--oversubscribe", POROS_PROGRAM, "bench", "matrix",
       (root_ / "spec.yaml").string(), "--plain", "--output-dir", (root_ / "ranks").string()},
      200, {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}});
  ASSERT_EQ(ranks.exit_code, 0) << ranks.out << ranks.err;
  EXPECT_EQ(record_set(root_ / "ranks"), expected);
  const fs::path script = fs::path(POROS_SOURCE_DIR) / "tests" / "integration" / "h5_agrees.py";
  const ProcessResult h5py =
      run_process({python_, script.string(), dir_.string(), (root_ / "ranks").string()}, 120);
  if (h5py.exit_code == 77) GTEST_SKIP() << h5py.out;
  EXPECT_EQ(h5py.exit_code, 0) << h5py.out << h5py.err;
}

}  // namespace
}  // namespace poros
