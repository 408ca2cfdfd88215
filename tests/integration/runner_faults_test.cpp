// SPDX-License-Identifier: Apache-2.0
// The real PEFT runner, killed, stopped, leaving a daemon and doing other work: the outcome has a
// name, nothing is left, and the cell after it is unharmed.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/files.hpp"
#include "base/json.hpp"
#include "base/subprocess.hpp"
#include "cell/processes.hpp"
#include "model/token_file.hpp"
#include "receipts/campaign_store.hpp"

namespace poros {
namespace {
namespace fs = std::filesystem;

constexpr const char* kMarker = "POROS_RUNNER_TEST";

std::string environment_or(const char* name, const fs::path& otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise.string();
}

class Runner : public ::testing::Test {
 protected:
  void SetUp() override {
    const fs::path source = POROS_SOURCE_DIR;
    const std::string python =
        environment_or("POROS_PYTHON", source / ".deps" / "python" / "bin" / "python");
    const std::string peers =
        environment_or("POROS_PEERS_PYTHON", source / ".deps" / "peers" / "bin" / "python");
    const std::string imports = "import torch, transformers, peft, bitsandbytes";
    if (!fs::exists(python) || !fs::exists(peers) ||
        run_process({peers, "-c", imports}, 120).exit_code != 0) {
      GTEST_SKIP() << "no PEFT; scripts/bootstrap.sh --peers installs it";
    }
    std::string pattern = (fs::temp_directory_path() / "poros-runner.XXXXXX").string();
    root_ = ::mkdtemp(pattern.data());
    ::setenv(kMarker, root_.c_str(), 1);
    ::setenv("POROS_PYTHON", python.c_str(), 1);
    ::setenv("POROS_PEERS_PYTHON", peers.c_str(), 1);
    ::setenv("POROS_CACHE_DIR", (root_ / "cache").c_str(), 1);
  }
  void TearDown() override {
    if (root_.empty()) return;
    static_cast<void>(kill_tagged(kMarker, root_.string(), 5));
    for (const char* name : {"POROS_NASTY", "POROS_PEERS_DIR"}) ::unsetenv(name);
    fs::remove_all(root_);
  }

  /// The runners with the nasty one in the place of peft.
  void put_nasty(const std::string& mode) const {
    const fs::path source = POROS_SOURCE_DIR;
    const fs::path package = root_ / "peers" / "poros_peers";
    fs::create_directories(package);
    for (const auto& entry : fs::directory_iterator(source / "src" / "peers" / "poros_peers")) {
      if (entry.path().extension() != ".py") continue;
      const bool is_peft = entry.path().filename() == "peft.py";
      fs::copy_file(entry.path(),
                    package / (is_peft ? "peft_as_it_is.py" : entry.path().filename().string()));
    }
    fs::copy_file(source / "tests" / "integration" / "nasty_peft.py", package / "peft.py");
    ::setenv("POROS_PEERS_DIR", (root_ / "peers").c_str(), 1);
    ::setenv("POROS_NASTY", mode.c_str(), 1);
  }

  /// peft, then resident: the record of each.
  std::map<std::string, RunArtifact> run(const std::string& protocol = "shared") {
    const fs::path configs = fs::path(POROS_SOURCE_DIR) / "configs";
    std::ofstream(root_ / "spec.yaml")
        << "spec_id: runners\ndevice: cpu\nprotocol: " << protocol
        << "\nmethods: [peft, resident]\nmodels:\n  - model_id: "
        << (configs / "models" / "kjv-qwen2").string()
        << "\n    display_name: KJV\ntraining:\n  steps: 4\n  n_passes: 1\n  warmup_steps: 1\n"
           "  seq_len: 32\n  batch_size: 1\n  gradient_accumulation_steps: 2\n"
           "  learning_rate: 1.0e-3\n  max_grad_norm: 0.01\n  dataset:\n    path: "
        << (configs / "data" / "alice.txt").string()
        << "\n    format: text\nlora: {dropout: 0.0}\ntimeouts: {load: 300, step: 20, cell: 500}\n";
    const ProcessResult result =
        run_process({POROS_PROGRAM, "bench", "run", (root_ / "spec.yaml").string(), "--output-dir",
                     (root_ / "out").string()},
                    500);
    said_ = result.out + result.err;
    std::map<std::string, RunArtifact> arms;
    for (const CampaignCell& cell : load_campaign_folder(root_ / "out").cells) {
      arms[cell.artifact.method] = cell.artifact;
      if (!cell.passes.empty()) records_[cell.artifact.method] = cell.passes.front().record;
    }
    return arms;
  }
  void expect_nothing_left() const {
    for (int i = 0; i < 1000 && tagged_processes(kMarker, root_.string()).size() > 0; ++i) {
      if (i == 999) ADD_FAILURE() << "processes are left";
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  static std::string text(const std::optional<std::string>& value) { return value.value_or(""); }

  fs::path root_;
  std::string said_;
  std::map<std::string, PassRecord> records_;
};

TEST_F(Runner, KilledByASignal) {
  put_nasty("kill");
  const auto arms = run();
  ASSERT_TRUE(arms.contains("peft")) << said_;
  EXPECT_EQ(arms.at("peft").status, "error");
  EXPECT_EQ(text(arms.at("peft").reason), "signal");
  EXPECT_NE(text(arms.at("peft").error_message).find("after step 2 of 4"), std::string::npos)
      << text(arms.at("peft").error_message);
  EXPECT_EQ(arms.at("resident").status, "ok") << said_;
  expect_nothing_left();
}

TEST_F(Runner, Hanging) {
  put_nasty("stop");
  const auto arms = run();
  ASSERT_TRUE(arms.contains("peft")) << said_;
  EXPECT_EQ(text(arms.at("peft").reason), "timeout");
  EXPECT_NE(text(arms.at("peft").error_message).find("the step took longer than 20 s"),
            std::string::npos);
  EXPECT_NE(text(arms.at("peft").error_message).find("after step 2 of 4"), std::string::npos)
      << text(arms.at("peft").error_message);
  EXPECT_EQ(arms.at("resident").status, "ok") << said_;
  expect_nothing_left();
}

TEST_F(Runner, LeavingADaemon) {
  put_nasty("grandchild");
  const auto arms = run();
  ASSERT_TRUE(arms.contains("peft")) << said_;
  EXPECT_EQ(arms.at("peft").status, "ok") << text(arms.at("peft").error_message);
  EXPECT_EQ(arms.at("resident").status, "ok") << said_;
  expect_nothing_left();
}

TEST_F(Runner, ABaseThatIsNotQuantisedIsSuspect) {
  put_nasty("dense");
  const auto arms = run();
  ASSERT_TRUE(arms.contains("peft")) << said_;
  EXPECT_EQ(arms.at("peft").status, "ok") << text(arms.at("peft").error_message);
  EXPECT_EQ(arms.at("peft").flags, std::vector<std::string>{"suspect"});
  EXPECT_EQ(text(arms.at("peft").reason), "its base is not NF4 (resident)");
  EXPECT_FALSE(arms.at("peft").slowdown_vs_resident_x.has_value());
}

TEST_F(Runner, NativeProtocolTrainsTheLibraryOnOneBatchAndTheOwnArmOnTheData) {
  const auto arms = run("native");
  ASSERT_TRUE(arms.contains("peft")) << said_;
  const RunArtifact &peft = arms.at("peft"), &resident = arms.at("resident");
  ASSERT_EQ(peft.status + resident.status, "okok") << said_;
  EXPECT_TRUE(peft.flags.empty()) << text(peft.reason);
  const auto tokens = [&](const RunArtifact& arm) {
    return read_token_file(root_ / "out" / "inputs" / (arm.token_sha256 + ".tokens"));
  };
  EXPECT_EQ(tokens(peft).rows, 1);  // one micro-batch of one row
  EXPECT_NE(tokens(peft).note.find("\"dataset\":\"synthetic\""), std::string::npos);
  EXPECT_EQ(tokens(resident).note.find("\"dataset\":\"synthetic\""), std::string::npos);
  EXPECT_GT(tokens(resident).rows, 1);
  // A constant rate against the cosine; the limit of 0.01 would show in slower learning.
  const std::vector<double>& bare = records_["peft"].steps.learning_rate;
  EXPECT_EQ(bare, std::vector<double>(4, 1e-3));
  EXPECT_LT(records_["resident"].steps.learning_rate.back(), 0.9e-3);
  EXPECT_EQ(records_["peft"].arm.at("trained_with").at("max_grad_norm"), 0.0);
  EXPECT_EQ(peft.protocol_warnings.size(), 2U);
  EXPECT_EQ(resident.protocol_warnings.size(), 1U);
  EXPECT_EQ(records_["peft"].driver.at("protocol_warnings").size(), 2U);
}

}  // namespace
}  // namespace poros
