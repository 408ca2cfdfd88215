// SPDX-License-Identifier: Apache-2.0
// What a campaign leaves, and that the same command goes on.
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/files.hpp"
#include "campaign/campaign.hpp"
#include "driver_fixture.hpp"
#include "other_program.hpp"
#include "receipts/campaign_store.hpp"
#include "receipts/hdf5_store.hpp"

namespace poros::testing {
namespace {
namespace fs = std::filesystem;

using Calls = std::vector<std::string>;

TEST_F(DriverTest, PassesAreInterleavedAndEverythingIsWrittenDown) {
  write_spec("[poros, resident, peft, unsloth]");
  set_cells({{"poros", {{"s_per_step", {0.8, 1.0}}}}, {"resident", {{"s_per_step", {0.5, 0.7}}}}});
  const ProcessResult result = drive();
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_EQ(calls(), (Calls{"poros timed 0 1", "resident timed 0 1", "poros timed 1 1",
                            "resident timed 1 1", "poros parity 0 1", "resident parity 0 1"}));
  const RunArtifact poros = artifact("poros"), resident = artifact("resident");
  EXPECT_EQ(poros.status, "ok");
  EXPECT_EQ(poros.n_passes, 2);
  EXPECT_EQ(poros.n_passes_expected, 2);
  EXPECT_DOUBLE_EQ(*poros.s_per_step, 0.9);  // median of 0.8 and 1.0
  EXPECT_DOUBLE_EQ(*poros.s_per_step_min, 0.8);
  EXPECT_DOUBLE_EQ(*poros.s_per_step_max, 1.0);
  EXPECT_NEAR(*poros.s_per_step_stddev, 0.1, 1e-15);  // over the population
  EXPECT_DOUBLE_EQ(*resident.s_per_step, 0.6);
  EXPECT_DOUBLE_EQ(*poros.slowdown_vs_resident_x, 1.5);
  EXPECT_DOUBLE_EQ(*poros.vram_saved_vs_resident_pct, 75.0);  // 100 of 400
  EXPECT_FALSE(resident.slowdown_vs_resident_x.has_value());
  EXPECT_FALSE(poros.slowdown_vs_unsloth_x.has_value());
  EXPECT_EQ(*poros.tokens_per_step, 32);
  EXPECT_NEAR(*poros.tok_per_sec, 32 / 0.9, 1e-12);
  EXPECT_DOUBLE_EQ(*poros.first_step_loss, 5.0);
  EXPECT_NEAR(*poros.mean_loss_first10, 4.955, 1e-12);  // 5.00, 4.99, ..., 4.91
  EXPECT_NEAR(*poros.mean_loss_last10, 4.855, 1e-12);
  EXPECT_TRUE(poros.flags.empty());
  EXPECT_FALSE(poros.bitwise_exact.has_value());  // a speed record measures no parity
  EXPECT_EQ(poros.cell_build, resident.cell_build);
  EXPECT_EQ(poros.token_sha256.size(), 64U);
  EXPECT_TRUE(fs::exists(dir_ / "inputs" / (poros.token_sha256 + ".tokens")));
  EXPECT_TRUE(fs::exists(dir_ / "inputs" / (poros.adapter_sha256 + ".adapter") /
                         "adapter_model.safetensors"));

  const RunArtifact peft = artifact("peft"), unsloth = artifact("unsloth");
  EXPECT_EQ(peft.status, "skipped");
  EXPECT_EQ(*peft.reason, "not_installed");
  EXPECT_NE(peft.error_message->find("scripts/bootstrap.sh --peers"), std::string::npos);
  EXPECT_EQ(*unsloth.reason, "needs CUDA");
  EXPECT_FALSE(unsloth.s_per_step.has_value());

  const Json record = parity();
  EXPECT_EQ(record.at("bitwise_exact"), true);
  EXPECT_EQ(record.at("parity_loss_max_diff"), 0.0);
  EXPECT_EQ(record.at("parity_weight_max_diff"), 0.0);
  EXPECT_EQ(record.at("steps"), 20);
  EXPECT_EQ(record.at("cell_key_a"), poros.cell_key);
  EXPECT_EQ(record.at("cell_key_b"), resident.cell_key);
  EXPECT_EQ(record.at("passes").size(), 2U);

  const Campaign campaign = load_campaign_folder(dir_);
  EXPECT_EQ(campaign.cells.size(), 4U);
  EXPECT_TRUE(campaign.problems.empty());
  EXPECT_TRUE(campaign.pending.empty());
  EXPECT_TRUE(fs::exists(dir_ / "campaign.h5"));
  EXPECT_FALSE(fs::exists(dir_ / "live" / "0.json"));
  EXPECT_FALSE(fs::exists(dir_ / "live" / "0.work"));
  EXPECT_NE(result.out.find("bitwise equal over 20 steps"), std::string::npos) << result.out;
}

TEST_F(DriverTest, TheSameCommandDoesNothingWhenAllIsDone) {
  ASSERT_EQ(drive().exit_code, 0);
  const std::string journal = read_file(dir_ / "results.jsonl");
  forget_calls();
  const ProcessResult again = drive();
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(calls(), Calls{});
  EXPECT_EQ(read_file(dir_ / "results.jsonl"), journal);
  EXPECT_NE(again.out.find("resident kjv-qwen2 nf4  ok         2/2"), std::string::npos)
      << again.out;
}

TEST_F(DriverTest, MorePassesAddOnlyTheMissingOnes) {
  ASSERT_EQ(drive({"--passes", "1"}).exit_code, 0);
  forget_calls();
  ASSERT_EQ(drive({"--passes", "2"}).exit_code, 0);
  EXPECT_EQ(calls(), (Calls{"poros timed 1 1", "resident timed 1 1"}));
  EXPECT_EQ(artifact("poros").n_passes, 2);
  expect_whole(2, 2);
}

TEST_F(DriverTest, PassesAreAddedToAGroupUntilTheyAgree) {
  write_spec("[poros, resident]", 2, 20, "parity: off\n");
  // The fake cell takes its times in turn: a slow first pass, then steady ones.
  set_cells({{"poros", {{"s_per_step", {1.0, 1.5, 1.0, 1.0}}}},
             {"resident", {{"s_per_step", {1.0, 1.0, 1.0, 1.0}}}}});
  const ProcessResult result = drive({"--until-stable", "10", "--max-passes", "4"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  // One pass of poros stays 50 % above the others, so the limit ends it.
  EXPECT_EQ(calls().size(), 8U);
  EXPECT_EQ(artifact("poros").n_passes, 4);
  EXPECT_EQ(artifact("resident").n_passes_expected, 4);
  forget_calls();
  // What was measured beyond the spec counts later too, and stable groups get nothing more.
  ASSERT_EQ(drive().exit_code, 0);
  ASSERT_EQ(drive({"--until-stable", "60", "--max-passes", "9"}).exit_code, 0);
  EXPECT_TRUE(calls().empty());
  EXPECT_EQ(artifact("poros").n_passes, 4);
}

TEST_F(DriverTest, AChangedSpecIsRefusedWithTheKeysAndFreshMovesTheOldRunAside) {
  ASSERT_EQ(drive().exit_code, 0);
  const std::string journal = read_file(dir_ / "results.jsonl");
  write_spec("[poros, resident]", 2, 21);
  const ProcessResult refused = drive();
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("training.steps: 20 there, 21 now"), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find("--fresh"), std::string::npos);
  EXPECT_EQ(read_file(dir_ / "results.jsonl"), journal);
  ASSERT_EQ(drive({"--fresh"}).exit_code, 0);
  EXPECT_EQ(read_file(dir_.string() + ".1/results.jsonl"), journal);
  EXPECT_EQ(artifact("poros").steps, 21);
  ASSERT_EQ(drive({"--fresh"}).exit_code, 0);
  EXPECT_TRUE(fs::exists(dir_.string() + ".2/spec.json"));
}

TEST_F(DriverTest, ABrokenSpecOrAMissingModelLeavesNothingBehind) {
  std::ofstream(spec_, std::ios::app) << "nonsense: 1\n";
  EXPECT_EQ(drive().exit_code, 2);
  EXPECT_FALSE(fs::exists(dir_));
  std::ofstream(spec_)
      << "spec_id: x\ndevice: cpu\nmodels: [{model_id: ./nowhere, display_name: Nowhere}]\n"
         "methods: [poros]\n";
  const ProcessResult missing = drive();
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_NE(missing.err.find("/nowhere: the model's folder is not there"), std::string::npos)
      << missing.err;
  EXPECT_FALSE(fs::exists(dir_));
}

TEST_F(DriverTest, AnotherBuildOfTheCellsIsNoReasonToRunFinishedOnesButIsNotMixed) {
  ASSERT_EQ(drive({"--passes", "1"}).exit_code, 0);
  // The same program with one byte more is another build.
  const fs::path other = root_ / "driver_test_2";
  fs::copy_file("/proc/self/exe", other);
  std::ofstream(other, std::ios::app) << "x";
  const std::vector<std::string> argv{other.string(), "__drive", spec_.string(), dir_.string()};
  std::vector<std::string> same = argv, more = argv;
  same.insert(same.end(), {"--passes", "1"});
  EXPECT_EQ(run_process(same, 60).exit_code, 0);
  const ProcessResult mixed = run_process(more, 60);
  EXPECT_EQ(mixed.exit_code, 2);
  EXPECT_NE(mixed.err.find("another build of poros-cell"), std::string::npos) << mixed.err;
}

TEST_F(DriverTest, ParityNamesTheFirstDifferenceAndItsSize) {
  set_cells({{"poros", {{"change_step", 3}}}});
  const ProcessResult result = drive();
  EXPECT_EQ(result.exit_code, 1);  // a gate failed
  const Calls made = calls();
  EXPECT_EQ(Calls(made.end() - 2, made.end()),
            (Calls{"poros parity 1 1 dump", "resident parity 1 1 dump"}));
  const Json record = parity();
  EXPECT_EQ(record.at("status"), "ok");  // it was measured
  EXPECT_EQ(record.at("bitwise_exact"), false);
  EXPECT_EQ(record.at("first_difference_step"), 3);
  EXPECT_EQ(record.at("first_difference_kind"), "weight");
  EXPECT_EQ(record.at("first_difference_tensor"), "lora_A");
  EXPECT_EQ(record.at("parity_weight_max_diff"), 0.25);
  EXPECT_EQ(record.at("parity_loss_max_diff"), 0.0);
  EXPECT_NE(result.out.find("DIFFERENT from step 3 on"), std::string::npos) << result.out;
  EXPECT_FALSE(fs::exists(dir_ / "live" / "dump-poros"));
}

TEST_F(DriverTest, UnequalWorkIsSuspectAndKeptOutOfRatios) {
  set_cells({{"poros", {{"trainable_params", 999}}}});
  EXPECT_EQ(drive().exit_code, 0);
  const RunArtifact poros = artifact("poros");
  EXPECT_EQ(poros.status, "ok");
  EXPECT_EQ(poros.flags, std::vector<std::string>{"suspect"});
  EXPECT_EQ(*poros.reason, "trainable parameters: 999 against 1000 (resident)");
  EXPECT_FALSE(poros.slowdown_vs_resident_x.has_value());
}

TEST_F(DriverTest, StatusShowAndLogsReadTheFiles) {
  ASSERT_EQ(drive().exit_code, 0);
  const Json status = campaign_status(dir_);
  EXPECT_EQ(status.at("counts").at("done"), 2);
  EXPECT_EQ(status.at("counts").at("total"), 2);
  EXPECT_EQ(status.at("driver").at("state"), "not running");
  EXPECT_EQ(status.at("cells").at(0).at("method"), "poros");
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(print_cell(dir_, artifact("poros").cell_key.substr(0, 12), false), 0);
  EXPECT_EQ(print_log(dir_, "poros_kjv-qwen2_nf4.json", 1), 0);
  const std::string text = ::testing::internal::GetCapturedStdout();
  EXPECT_NE(text.find("trainable_params"), std::string::npos);
  EXPECT_NE(text.find("timed 1 attempt 1: ok"), std::string::npos);
  EXPECT_NE(text.find("hello\n"), std::string::npos);
  EXPECT_THROW(print_cell(dir_, "zzzz", false), Error);
}

/// Files below `folder` in which `needle` stands.
std::vector<std::string> files_with(const fs::path& folder, const std::string& needle) {
  std::vector<std::string> found;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    if (text.find(needle) != std::string::npos) found.push_back(entry.path().string());
  }
  return found;
}

TEST_F(DriverTest, SecretsAreNowhereInTheOutput) {
  const std::map<std::string, std::string> secrets{
      {"NASTY_API_TOKEN", "canary-51c7a90b"},
      {"HF_TOKEN", "hf_canaryQ7xW2pLz"},
      {"AWS_SECRET_ACCESS_KEY", "canary/AbC+dEf=9931"},
      {"AWS_SESSION_TOKEN", "canary-session-77aa"},
      {"HTTPS_PROXY", "http://somebody:canary-pw-4410@proxy.example:3128"}};
  const std::string password = "canary-pw-4410";
  std::string printed = "control-canary, a password " + password;
  std::string note = "--note=" + password;
  for (const auto& [name, value] : secrets) {
    ::setenv(name.c_str(), value.c_str(), 1);
    printed += " and " + value;
    note += "," + value;
  }
  ::setenv("POROS_FAKE_PRINT", "NASTY_API_TOKEN", 1);
  set_cells({{"poros", {{"print", printed}}}, {"resident", {{"mode", "crash"}}}});
  EXPECT_EQ(drive({note}).exit_code, 1);
  // The log of a failed cell goes into its record; there is also what the whole is made into.
  set_cells({{"poros", {{"print", printed}, {"mode", "crash"}}}});
  EXPECT_EQ(drive({note, "--fresh"}).exit_code, 1);
  for (const auto& [name, value] : secrets) ::unsetenv(name.c_str());
  ::unsetenv("POROS_FAKE_PRINT");
  EXPECT_GE(files_with(dir_, "control-canary").size(), 2U);  // what is no secret is found
  // The store is compressed: what it holds is read, not its bytes.
  gather(dir_);
  std::string stored;
  for (const CampaignCell& cell : load_campaign(dir_ / "campaign.h5").cells) {
    stored += dump_json(to_json(cell.artifact));
    for (const CampaignPass& pass : cell.passes) stored += dump_json(to_json(pass.record));
  }
  EXPECT_NE(stored.find("control-canary"), std::string::npos);
  for (const auto& [name, value] : secrets) {
    const std::string secret = name == "HTTPS_PROXY" ? password : value;
    EXPECT_EQ(stored.find(secret), std::string::npos) << name;
    for (const std::string& file : files_with(root_, secret)) {
      // cells.json is what this test itself has written.
      EXPECT_EQ(file, (root_ / "cells.json").string()) << name;
    }
    EXPECT_FALSE(files_with(dir_, "[redacted:" + name + "]").empty()) << name;
  }
}

}  // namespace
}  // namespace poros::testing

int main(int argc, char** argv) {
  if (const auto code = poros::testing::other_program(argc, argv)) return *code;
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
