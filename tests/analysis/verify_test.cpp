// SPDX-License-Identifier: Apache-2.0
#include "analysis/verify.hpp"

#include <gtest/gtest.h>

#include "analysis/report.hpp"
#include "base/files.hpp"
#include "campaign_fixture.hpp"
#include "receipts/hdf5_store.hpp"
#include "temp_folder.hpp"

namespace poros {
namespace {

namespace fs = std::filesystem;
using testing::TempFolder;

class Verify : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = folder_.path() / "c";
    fs::create_directories(dir_);
    testing::write_campaign(dir_, {});
    (void)gather(dir_);
    (void)write_report(dir_, dir_, true, true);
  }

  /// Flips one bit in the middle of the file and expects that verify names it.
  void flip(const fs::path& file, const std::string& name) {
    const std::string whole = read_file(file);
    std::string text = whole;
    text[text.size() / 2] = static_cast<char>(text[text.size() / 2] ^ 1);
    write_file_durably(file, text);
    std::string problems;
    for (const std::string& problem : verify_campaign(dir_).problems) problems += problem + "\n";
    EXPECT_NE(problems.find(name), std::string::npos) << problems;
    write_file_durably(file, whole);
  }

  TempFolder folder_;
  fs::path dir_;
};

TEST_F(Verify, AnUntouchedCampaignIsTraced) {
  const Verification v = verify_campaign(dir_);
  EXPECT_TRUE(v.problems.empty()) << v.problems.front();
  EXPECT_TRUE(v.store && v.html && v.markdown);
  EXPECT_GT(v.receipts, 0u);
  EXPECT_GT(v.passes, 0u);
  const std::string index = validation_index({v});
  EXPECT_NE(index.find("[c](c/)"), std::string::npos) << index;
}

TEST_F(Verify, AFlippedBitIsNamedWhereverItIs) {
  flip(dir_ / "results.jsonl", "results.jsonl");
  flip(dir_ / "report.html", "report.html");
  flip(dir_ / "report.md", "report.md");
  std::size_t files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(dir_ / "artifacts")) {
    if (entry.path().extension() != ".json" || ++files > 5) continue;
    flip(entry.path(), entry.path().filename().string());
  }
  EXPECT_GT(files, 0u);
  EXPECT_TRUE(verify_campaign(dir_).problems.empty());
}

TEST_F(Verify, ADamagedCampaignIsNotInTheIndex) {
  fs::remove_all(dir_ / "artifacts");
  const Verification v = verify_campaign(dir_);
  EXPECT_FALSE(v.problems.empty());
  EXPECT_EQ(validation_index({v}).find("[c](c/)"), std::string::npos);
}

}  // namespace
}  // namespace poros
