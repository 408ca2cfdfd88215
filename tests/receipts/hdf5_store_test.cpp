// SPDX-License-Identifier: Apache-2.0
#include "receipts/hdf5_store.hpp"

#include <cmath>
#include <csignal>
#include <fstream>

#include <gtest/gtest.h>
#include <hdf5.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "campaign_fixture.hpp"
#include "receipts/hdf5_api.hpp"
#include "receipts/journal.hpp"
#include "temp_folder.hpp"

namespace poros {
namespace {

namespace fs = std::filesystem;
using testing::FixtureOptions;
using testing::TempFolder;
using testing::write_campaign;

/// The whole of a campaign as text: equal text, equal content.
std::string text_of(const Campaign& c) {
  Json json{{"spec", c.spec},
            {"pending", c.pending},
            {"problems", c.problems},
            {"sha256", c.receipts_sha256},
            {"original", c.original_format}};
  for (const Receipt& receipt : c.receipts) json["receipts"].push_back(to_line(receipt));
  for (const CampaignCell& cell : c.cells) {
    Json entry{{"artifact", to_json(cell.artifact)},
               {"path", cell.path},
               {"sha256", cell.sha256},
               {"seq", cell.seq}};
    for (const CampaignPass& pass : cell.passes) {
      entry["passes"].push_back({to_json(pass.record), pass.path, pass.sha256});
    }
    json["cells"].push_back(std::move(entry));
  }
  for (const CampaignParity& parity : c.parity) {
    json["parity"].push_back(
        {parity.group_key, parity.seq, parity.fields, parity.record, parity.path, parity.sha256});
  }
  return dump_json(json, 1);
}

std::string refusal(const fs::path& file) {
  try {
    (void)read_campaign_h5(file);
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::input) << error.what();
    return error.what();
  }
  return "";
}

TEST(Hdf5Store, GivesBackWhatJournalAndArtifactsHold) {
  const TempFolder folder;
  write_campaign(folder.path(), {});
  const Campaign before = load_campaign(folder.path());
  EXPECT_EQ(before.cells.size(), 19u);
  EXPECT_EQ(before.pending.size(), 1u);
  EXPECT_TRUE(before.problems.empty());
  EXPECT_EQ(before.parity.size(), 4u);
  EXPECT_EQ(before.cells[0].passes.size(), 3u);
  gather(folder.path());
  EXPECT_EQ(text_of(load_campaign(folder / kStoreFile)), text_of(before));
}

TEST(Hdf5Store, FromTheFileAloneInItsFolder) {
  const TempFolder folder, other;
  write_campaign(folder.path(), {});
  gather(folder.path());
  fs::copy(folder / kStoreFile, other / kStoreFile);
  EXPECT_EQ(text_of(load_campaign(other.path())), text_of(load_campaign(folder.path())));
}

TEST(Hdf5Store, EqualInputGivesEqualBytes) {
  const TempFolder folder;
  write_campaign(folder.path(), {});
  gather(folder.path());
  const std::string first = read_file(folder / kStoreFile);
  fs::remove(folder / kStoreFile);
  ::sleep(1);  // stored times would differ
  gather(folder.path());
  EXPECT_EQ(read_file(folder / kStoreFile), first);
  // A campaign value with its passes gives the same file as reading them cell by cell.
  write_campaign_h5(folder / "other.h5", load_campaign(folder.path()));
  EXPECT_EQ(read_file(folder / "other.h5"), first);
}

TEST(Hdf5Store, LeavesNoTemporaryFile) {
  const TempFolder folder;
  write_campaign(folder.path(), {});
  gather(folder.path());
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    EXPECT_NE(entry.path().filename().string()[0], '.') << entry.path();
  }
}

TEST(Hdf5Store, AnEmptyCampaign) {
  const TempFolder folder;
  write_file_durably(folder / kSpecFile, R"({"v":1,"spec_id":"none","cells":{}})");
  gather(folder.path());
  EXPECT_EQ(text_of(load_campaign(folder / kStoreFile)), text_of(load_campaign(folder.path())));
}

TEST(Hdf5Store, TextsThatAttack) {
  const TempFolder folder;
  FixtureOptions options;
  options.attack = "</script>\"'<img src=x onerror=alert(1)>|`\n\xC3\xA9\t\x7f";
  write_campaign(folder.path(), options);
  gather(folder.path());
  EXPECT_EQ(text_of(load_campaign(folder / kStoreFile)), text_of(load_campaign(folder.path())));
}

TEST(Hdf5Store, MissingAndAlteredRecordsAreNamedInBoth) {
  const TempFolder folder;
  write_campaign(folder.path(), {});
  const Campaign whole = load_campaign(folder.path());
  fs::remove(folder / whole.cells[0].passes[1].path);
  fs::remove(folder / whole.cells[1].path);
  std::string text = read_file(folder / whole.cells[2].path);
  text[text.size() / 2] ^= 1;
  write_file_durably(folder / whole.cells[2].path, text);

  const Campaign damaged = load_campaign(folder.path());
  ASSERT_EQ(damaged.problems.size(), 3u);
  EXPECT_NE(damaged.problems[0].find("missing"), std::string::npos);
  EXPECT_NE(damaged.problems[1].find("altered"), std::string::npos);
  EXPECT_EQ(damaged.cells[0].passes.size(), 2u);
  // The receipt still says what the lost artifact said in its scalar fields.
  EXPECT_EQ(damaged.cells[1].artifact.s_per_step, whole.cells[1].artifact.s_per_step);
  EXPECT_EQ(damaged.cells[1].artifact.cell_key, whole.cells[1].artifact.cell_key);
  gather(folder.path());
  EXPECT_EQ(text_of(load_campaign(folder / kStoreFile)), text_of(damaged));
}

TEST(Hdf5Store, RecordsCantPointOutOfTheFolder) {
  const TempFolder folder;
  write_file_durably(folder / "secret.json", "{}");
  fs::create_directory(folder / "c");
  write_file_durably(folder / "c/spec.json", R"({"v":1})");
  auto journal = JournalWriter::open(folder / "c/results.jsonl");
  for (const char* path : {"../secret.json", "/etc/passwd", "a//b", ""}) {
    Receipt receipt;
    receipt.kind = "parity";
    receipt.key = path;
    receipt.artifact_path = path;
    journal.append(receipt);
  }
  const Campaign campaign = load_campaign(folder / "c");
  EXPECT_EQ(campaign.problems.size(), 4u);
  for (const auto& problem : campaign.problems) {
    EXPECT_NE(problem.find("can't be"), std::string::npos) << problem;
  }
}

TEST(Hdf5Store, OtherFilesAreRefusedClearly) {
  const TempFolder folder;
  EXPECT_NE(refusal(folder / "missing.h5"), "");
  write_file_durably(folder / "text.h5", "no HDF5");
  EXPECT_NE(refusal(folder / "text.h5").find("not an HDF5 file"), std::string::npos);
  {
    const h5::Silence silence;
    const h5::Context context{folder / "foreign.h5", Fault::io};
    auto file = context.own(
        H5Fcreate((folder / "foreign.h5").c_str(), H5F_ACC_EXCL, H5P_DEFAULT, H5P_DEFAULT),
        H5Fclose, "creation");
  }
  EXPECT_NE(refusal(folder / "foreign.h5").find("not a campaign store"), std::string::npos);
  EXPECT_THROW((void)load_campaign(folder / "nowhere"), Error);
  EXPECT_THROW((void)load_campaign_folder(folder.path()), Error);
}

// Damage is refused, or hits bytes that hold nothing: never a crash, never other content.
TEST(Hdf5Store, FlippedAndCutBytes) {
  const TempFolder folder;
  FixtureOptions options;
  options.models = {"Qwen/Qwen2.5-7B"};
  options.hardware = {"NVIDIA A100-SXM4-80GB"};
  options.passes = 1;
  write_campaign(folder.path(), options);
  gather(folder.path());
  const std::string expected = text_of(load_campaign(folder.path()));
  const std::string whole = read_file(folder / kStoreFile);
  std::size_t refused = 0, unharmed = 0;
  for (std::size_t at = 0; at < whole.size(); at += 97) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x20);
    std::ofstream(folder / "damaged.h5", std::ios::binary | std::ios::trunc) << damaged;
    try {
      ASSERT_EQ(text_of(read_campaign_h5(folder / "damaged.h5")), expected) << "byte " << at;
      ++unharmed;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("damaged.h5"), std::string::npos) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, unharmed);
  for (std::size_t bytes = 0; bytes < whole.size(); bytes += 1999) {
    std::ofstream(folder / "damaged.h5", std::ios::binary | std::ios::trunc)
        << whole.substr(0, bytes);
    EXPECT_NE(refusal(folder / "damaged.h5"), "") << "cut at " << bytes;
  }
}

TEST(Hdf5Store, AFailedWriteLeavesTheOldStore) {
  const TempFolder folder;
  write_campaign(folder.path(), {});
  gather(folder.path());
  const std::string before = read_file(folder / kStoreFile);
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small{20000, old.rlim_max};
  ::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  try {
    gather(folder.path());
    ADD_FAILURE() << "wrote more than the limit";
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::io);
    EXPECT_NE(std::string(error.what()).find("campaign.h5"), std::string::npos) << error.what();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  EXPECT_EQ(read_file(folder / kStoreFile), before);
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    EXPECT_NE(entry.path().extension(), ".tmp");
  }
  gather(folder.path());
}

TEST(CampaignStore, ReadsTheOriginalsResults) {
  const TempFolder folder;
  write_file_durably(
      folder / kJournalName,
      R"({"method":"resident","model_id":"Qwen/Qwen2.5-32B","display_name":"Qwen2.5-32B","precision":"nf4","vram_peak_mb":42842.0,"s_per_step":1.47,"n_passes":3,"status":"ok","arch":"qwen2"})"
      "\n"
      R"({"method":"poros","model_id":"Qwen/Qwen2.5-32B","display_name":"Qwen2.5-32B","precision":"nf4","vram_peak_mb":0.0,"s_per_step":0.0,"status":"error","error_message":"boom"})"
      "\n");
  const Campaign campaign = load_campaign(folder.path());
  EXPECT_TRUE(campaign.original_format);
  ASSERT_EQ(campaign.cells.size(), 2u);
  EXPECT_EQ(campaign.cells[0].artifact.vram_peak_mb, 42842.0);
  EXPECT_FALSE(campaign.cells[1].artifact.s_per_step);
  gather(folder.path());
  EXPECT_EQ(text_of(load_campaign(folder / kStoreFile)), text_of(campaign));
}

TEST(CampaignStore, TheLastReceiptOfACellCounts) {
  const TempFolder folder;
  write_file_durably(folder / kSpecFile, R"({"v":1,"cells":{"k":null,"other":null}})");
  auto journal = JournalWriter::open(folder / kJournalName);
  for (const char* status : {"error", "ok"}) {
    RunArtifact artifact;
    artifact.method = "poros";
    artifact.status = status;
    const Json json = to_json(artifact);
    const std::string text = dump_json(json);
    write_file_durably(folder / (std::string(status) + ".json"), text);
    Receipt receipt;
    receipt.kind = "cell";
    receipt.key = "k";
    receipt.fields = scalar_fields(json);
    receipt.artifact_path = std::string(status) + ".json";
    receipt.artifact_sha256 = sha256_hex(text);
    journal.append(receipt);
  }
  const Campaign campaign = load_campaign(folder.path());
  ASSERT_EQ(campaign.cells.size(), 1u);
  EXPECT_EQ(campaign.cells[0].artifact.status, "ok");
  EXPECT_EQ(campaign.cells[0].artifact.cell_key, "k");
  EXPECT_EQ(campaign.cells[0].seq, 1);
  EXPECT_EQ(campaign.pending, std::vector<std::string>{"other"});
}

}  // namespace
}  // namespace poros
