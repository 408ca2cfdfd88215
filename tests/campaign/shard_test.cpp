// SPDX-License-Identifier: Apache-2.0
// Parts of a campaign: --only, --shard, limits, and gathering what several drivers have written.
#include <fstream>
#include <set>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "campaign/campaign.hpp"
#include "campaign/gather.hpp"
#include "driver_fixture.hpp"
#include "receipts/campaign_store.hpp"
#include "receipts/shards.hpp"

namespace poros::testing {
namespace {
namespace fs = std::filesystem;

using Calls = std::vector<std::string>;

constexpr const char* kTwoTypes =
    "hardware:\n"
    "  - gpu_name: slot-a\n"
    "  - gpu_name: slot-b\n"
    "parity: off\n";

std::set<std::string> ok_passes(const std::vector<Receipt>& receipts) {
  std::set<std::string> passes;
  for (const Receipt& receipt : receipts) {
    if (receipt.kind != "attempt" || receipt.fields.at("status") != "ok") continue;
    const std::string pass = receipt.key + "/" + dump_json(receipt.fields.at("pass"));
    EXPECT_TRUE(passes.insert(pass).second) << pass << " was measured twice";
  }
  return passes;
}

TEST_F(DriverTest, OnlyTheCellsThatAreAskedForRun) {
  write_spec("[poros, resident]", 1);
  ASSERT_EQ(drive({"--only", "method=resident"}).exit_code, 0);
  EXPECT_EQ(calls(), Calls{"resident timed 0 1"});
  EXPECT_EQ(receipts("cell").size(), 1U);  // the other is pending, not skipped
  EXPECT_EQ(load_campaign_folder(dir_).pending.size(), 1U);
  ASSERT_EQ(drive().exit_code, 0);
  EXPECT_EQ(calls(), (Calls{"resident timed 0 1", "poros timed 0 1", "poros parity 0 1",
                            "resident parity 0 1"}));
  EXPECT_TRUE(load_campaign_folder(dir_).pending.empty());
}

TEST_F(DriverTest, ACellThatIsNotThereCannotBeAskedFor) {
  for (const char* wrong : {"method=unsloth", "colour=red", "method=", "xyz", "0000ffff"}) {
    const ProcessResult result = drive({"--only", wrong});
    EXPECT_EQ(result.exit_code, 2) << wrong;
    EXPECT_NE(result.err.find(wrong), std::string::npos) << result.err;
  }
  EXPECT_FALSE(fs::exists(dir_));
}

TEST_F(DriverTest, ARunEndsAfterTheFailuresThatItMayHave) {
  write_spec("[poros, resident]", 1, 20, kTwoTypes);
  set_cells({{"poros", {{"mode", "crash"}}}});
  const ProcessResult result = drive({"--max-failures", "1"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(calls(), Calls{"poros timed 0 1"});
  EXPECT_NE(result.err.find("ended after 1 failed cell"), std::string::npos) << result.err;
}

TEST_F(DriverTest, WithoutTimeNoPassBegins) {
  const ProcessResult result = drive({"--max-hours", "0.0000001"});
  EXPECT_EQ(result.exit_code, 75);
  EXPECT_EQ(calls(), Calls{});
  EXPECT_NE(result.err.find("no pass that is left would end in time"), std::string::npos);
  EXPECT_EQ(drive().exit_code, 0);
  expect_whole(2, 2);
}

TEST_F(DriverTest, ShardsTogetherDoEachCellOnceAndAreGathered) {
  write_spec("[poros, resident]", 2, 20, kTwoTypes);
  ASSERT_EQ(drive({"--shard-name", "one", "--shard", "0/2", "--only", "gpu=slot-a"}).exit_code, 0);
  ASSERT_EQ(drive({"--shard-name", "b.1", "--only", "gpu=slot-b"}).exit_code, 0);
  EXPECT_FALSE(fs::exists(dir_ / kJournalName));
  EXPECT_FALSE(fs::exists(dir_ / kStoreFile));
  EXPECT_EQ(shard_names(dir_), (std::vector<std::string>{"b.1", "one"}));

  const Gathered gathered = gather_shards(dir_);
  EXPECT_EQ(gathered.appended, 2 * (4 + 2));
  EXPECT_EQ(gathered.campaign.cells.size(), 4U);
  EXPECT_TRUE(gathered.campaign.problems.empty());
  EXPECT_TRUE(gathered.campaign.pending.empty());
  EXPECT_EQ(ok_passes(receipts()).size(), 8U);
  const Receipt first = receipts().front();
  const Receipt source = read_journal(shard_journal(dir_, "b.1")).receipts.front();
  EXPECT_EQ(first.fields.at("shard"), "b.1");
  EXPECT_EQ(first.fields.at("shard_seq"), 0);
  EXPECT_EQ(first.fields.at("shard_sha256"), line_sha256(source));
  EXPECT_EQ(gather_shards(dir_).appended, 0);

  // Any later run knows what the shards have done, and so do later shards.
  forget_calls();
  EXPECT_EQ(drive().exit_code, 0);
  EXPECT_EQ(drive({"--shard-name", "late"}).exit_code, 0);
  EXPECT_EQ(calls(), Calls{});
}

TEST_F(DriverTest, ARunWithoutAShardTakesUpWhatShardsHaveDone) {
  write_spec("[poros, resident]", 1, 20, kTwoTypes);
  ASSERT_EQ(drive({"--shard-name", "a", "--only", "gpu=slot-a"}).exit_code, 0);
  forget_calls();
  ASSERT_EQ(drive().exit_code, 0);
  EXPECT_EQ(calls().size(), 2U);
  EXPECT_EQ(ok_passes(receipts()).size(), 4U);
  EXPECT_EQ(gather_shards(dir_).appended, 0);
}

TEST_F(DriverTest, AShardThatWasAlteredAfterGatheringIsRefused) {
  write_spec("[resident]", 1);
  ASSERT_EQ(drive({"--shard-name", "a"}).exit_code, 0);
  ASSERT_EQ(gather_shards(dir_).appended, 2);
  const fs::path journal = shard_journal(dir_, "a");
  std::vector<Receipt> altered = read_journal(journal).receipts;
  altered[0].fields["s_per_step"] = 0.001;
  std::string text;
  for (const Receipt& receipt : altered) text += to_line(receipt);
  altered.push_back(altered[1]);
  altered.back().seq = 2;
  text += to_line(altered.back());
  std::ofstream(journal) << text;
  try {
    static_cast<void>(gather_shards(dir_));
    FAIL() << "gathered";
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::input);
    EXPECT_NE(std::string(error.what()).find("shard a: its receipt 0"), std::string::npos)
        << error.what();
  }
}

TEST_F(DriverTest, CampaignsOfOneSpecAreJoinedAndThoseOfAnotherAreRefused) {
  write_spec("[poros, resident]", 1, 20, kTwoTypes);
  const fs::path here = root_ / "here", there = root_ / "there", joined = root_ / "joined";
  dir_ = here;
  ASSERT_EQ(drive({"--only", "gpu=slot-a"}).exit_code, 0);
  dir_ = there;
  ASSERT_EQ(drive({"--only", "gpu=slot-b"}).exit_code, 0);
  const Gathered gathered = gather_campaigns({here, there}, joined);
  EXPECT_EQ(gathered.campaign.cells.size(), 4U);
  EXPECT_TRUE(gathered.campaign.problems.empty());
  EXPECT_TRUE(gathered.campaign.pending.empty());
  EXPECT_EQ(gather_campaigns({here, there}, joined).appended, 0);
  EXPECT_TRUE(fs::exists(joined / "logs"));

  dir_ = root_ / "other";
  write_spec("[poros, resident]", 1, 21, kTwoTypes);
  ASSERT_EQ(drive({"--only", "gpu=slot-b"}).exit_code, 0);
  try {
    static_cast<void>(gather_campaigns({here, dir_}, root_ / "never"));
    FAIL() << "joined";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("training.steps"), std::string::npos) << error.what();
  }
  EXPECT_FALSE(fs::exists(root_ / "never"));
}

TEST_F(DriverTest, AShardWhoseJournalIsGoneIsNotBegunAnewUnderItsName) {
  write_spec("[resident]", 1);
  ASSERT_EQ(drive({"--shard-name", "a"}).exit_code, 0);
  ASSERT_EQ(gather_shards(dir_).appended, 2);
  fs::remove_all(dir_ / kShardFolder);
  forget_calls();
  const ProcessResult again = drive({"--shard-name", "a"});
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_NE(again.err.find("go on under another --shard-name"), std::string::npos) << again.err;
  fs::remove_all(dir_ / kShardFolder);
  EXPECT_EQ(drive({"--shard-name", "b"}).exit_code, 0);  // knows what is gathered
  EXPECT_EQ(drive().exit_code, 0);
  EXPECT_EQ(calls(), Calls{});
}

TEST_F(DriverTest, AShardThatWasCutIsFoundWhenThereIsNothingToGather) {
  write_spec("[resident]", 1);
  ASSERT_EQ(drive({"--shard-name", "a"}).exit_code, 0);
  ASSERT_EQ(gather_shards(dir_).appended, 2);
  const fs::path journal = shard_journal(dir_, "a");
  const std::string text = read_file(journal);
  std::ofstream(journal) << text.substr(0, text.find('\n') + 1);
  EXPECT_THROW(static_cast<void>(gather_shards(dir_)), Error);
}

TEST_F(DriverTest, ACampaignIsNotJoinedWithItselfOrIntoItself) {
  write_spec("[resident]", 1);
  ASSERT_EQ(drive().exit_code, 0);
  const std::string before = read_file(dir_ / kJournalName);
  const fs::path copy = root_ / "copy", link = root_ / "link";
  fs::copy(dir_, copy, fs::copy_options::recursive);
  fs::create_directory_symlink(dir_, link);
  for (const auto& [sources, out] : {std::pair<std::vector<fs::path>, fs::path>{{dir_}, dir_},
                                     {{dir_}, dir_ / "below"},
                                     {{dir_, copy}, root_ / "joined"},
                                     {{dir_, link}, root_ / "joined"}}) {
    EXPECT_THROW(static_cast<void>(gather_campaigns(sources, out)), Error) << out;
    EXPECT_FALSE(fs::exists(root_ / "joined"));
  }
  EXPECT_EQ(read_file(dir_ / kJournalName), before);
}

TEST_F(DriverTest, AParityRecordThatIsMissingOrChangedIsMeasuredAgain) {
  ASSERT_EQ(drive().exit_code, 0);
  const fs::path record = dir_ / receipts("parity").front().artifact_path;
  const std::string good = read_file(record);
  std::string altered = good;
  altered.replace(altered.find("true"), 4, "null");
  std::ofstream(record) << altered;
  ASSERT_EQ(drive().exit_code, 0);
  EXPECT_EQ(receipts("parity").size(), 2U);
  fs::remove(dir_ / receipts("parity").back().artifact_path);
  ASSERT_EQ(drive().exit_code, 0);
  EXPECT_EQ(receipts("parity").size(), 3U);
  EXPECT_EQ(parity().at("bitwise_exact"), true);
}

TEST_F(DriverTest, ABrokenSpecFileIsNamed) {
  write_spec("[resident]", 1);
  ASSERT_EQ(drive().exit_code, 0);
  for (const char* broken :
       {"null", "{}", R"({"spec": 5, "cells": {}})", "{", R"({"spec": {}, "cells": {"a": 5}})"}) {
    std::ofstream(dir_ / "spec.json") << broken;
    try {
      static_cast<void>(campaign_status(dir_));
      FAIL() << broken;
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::input);
      EXPECT_NE(std::string(error.what()).find("spec.json"), std::string::npos) << error.what();
    }
  }
}

TEST_F(DriverTest, WhatAShardNeedsIsSaid) {
  EXPECT_EQ(drive({"--shard", "0/2"}).exit_code, 2);                       // no name
  EXPECT_EQ(drive({"--shard-name", "a", "--shard", "2/2"}).exit_code, 2);  // no such part
  EXPECT_EQ(drive({"--shard-name", "../a"}).exit_code, 2);                 // no folder name
  EXPECT_EQ(drive({"--shard-name", "a", "--fresh"}).exit_code, 2);         // others' work
  EXPECT_FALSE(fs::exists(dir_));
}

}  // namespace
}  // namespace poros::testing
