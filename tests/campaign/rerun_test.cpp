// SPDX-License-Identifier: Apache-2.0
// bench rerun: from the record alone, with the recorded inputs, and the campaign stays as it was.
#include "campaign/rerun.hpp"

#include <fstream>
#include <map>

#include <gtest/gtest.h>

#include "base/files.hpp"
#include "base/sha256.hpp"
#include "driver_fixture.hpp"

namespace poros::testing {
namespace {
namespace fs = std::filesystem;

class Rerun : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    write_spec("[poros]", 2);
    set_cells({{"poros", {{"s_per_step", {0.5, 0.5}}}}});
    ASSERT_EQ(drive().exit_code, 0);
  }
  [[nodiscard]] std::map<std::string, std::string> files() const {
    std::map<std::string, std::string> hashes;
    for (const auto& entry : fs::recursive_directory_iterator(dir_)) {
      if (entry.is_regular_file()) hashes[entry.path().string()] = sha256_file(entry.path());
    }
    return hashes;
  }
  /// Exit code and what was printed.
  std::pair<int, std::string> rerun(RerunOptions options = {}) const {
    options.dir = dir_;
    options.key = artifact("poros").cell_key.substr(0, 8);
    options.cell_program = "/proc/self/exe";
    ::testing::internal::CaptureStdout();
    int code = -1;
    try {
      code = rerun_cell(options);
    } catch (...) {
      static_cast<void>(::testing::internal::GetCapturedStdout());
      throw;
    }
    return {code, ::testing::internal::GetCapturedStdout()};
  }
};

TEST_F(Rerun, ShowsOldAndNewFiguresAndLeavesTheCampaignAlone) {
  const auto before = files();
  forget_calls();
  fs::remove(spec_);  // nothing but the record is needed
  set_cells({{"poros", {{"s_per_step", {0.25}}}}});
  RerunOptions options;
  options.json = true;
  options.output_file = root_ / "again.json";
  const auto [code, text] = rerun(options);
  EXPECT_EQ(code, 0);
  const Json compared = parse_json(text, "rerun");
  const Json time = compared.at("figures").at("s_per_step");
  EXPECT_EQ(time.at("recorded"), 0.5);
  EXPECT_EQ(time.at("now"), 0.25);
  EXPECT_EQ(time.at("ratio"), 0.5);
  EXPECT_TRUE(compared.at("figures").at("pinned_mb").at("ratio").is_null());
  EXPECT_TRUE(compared.at("other_work").empty());
  EXPECT_EQ(calls(), (std::vector<std::string>{"poros timed 0 1", "poros timed 1 1"}));
  EXPECT_EQ(files(), before);
  const RunArtifact again =
      run_artifact_from_json(parse_json(read_file(root_ / "again.json"), "again"), "again");
  EXPECT_EQ(again.cell_key, artifact("poros").cell_key);
  EXPECT_EQ(again.token_sha256, artifact("poros").token_sha256);
  EXPECT_EQ(again.adapter_sha256, artifact("poros").adapter_sha256);
}

TEST_F(Rerun, InputsThatAreGoneAreMadeAgainAndChecked) {
  fs::remove_all(dir_ / "inputs");
  RerunOptions options;
  options.into = root_ / "again";
  options.n_passes = 1;
  const auto [code, text] = rerun(options);
  EXPECT_EQ(code, 0);
  EXPECT_NE(text.find("now/recorded"), std::string::npos) << text;
  const std::string tokens = artifact("poros").token_sha256 + ".tokens";
  EXPECT_EQ(sha256_file(root_ / "again" / "inputs" / tokens), artifact("poros").token_sha256);
  EXPECT_TRUE(fs::exists(root_ / "again" / "poros_kjv-qwen2_nf4.json"));
  EXPECT_THROW(rerun(options), Error);  // that folder is not empty any more
  EXPECT_FALSE(fs::exists(dir_ / "inputs"));
}

TEST_F(Rerun, OtherWorkAndAnotherEndAreSaid) {
  set_cells({{"poros", {{"trainable_params", 7}}}});
  auto [code, text] = rerun();
  EXPECT_EQ(code, 1);
  EXPECT_NE(text.find("OTHER WORK trainable_params: 1000 recorded, 7 now"), std::string::npos)
      << text;
  set_cells({{"poros", {{"mode", "crash"}}}});
  std::tie(code, text) = rerun();
  EXPECT_EQ(code, 1);
  EXPECT_NE(text.find("OTHER WORK status: ok recorded, error now"), std::string::npos) << text;
  EXPECT_NE(text.find("signal 6"), std::string::npos) << text;
}

TEST_F(Rerun, AnAlteredRecordIsRefused) {
  std::ofstream(dir_ / "poros_kjv-qwen2_nf4.json", std::ios::app) << "\n";
  try {
    static_cast<void>(rerun());
    FAIL() << "an altered record was taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("it was changed"), std::string::npos) << error.what();
    EXPECT_EQ(error.exit_code(), kWrongInput);
  }
}

}  // namespace
}  // namespace poros::testing
