// SPDX-License-Identifier: Apache-2.0
#include "analysis/report.hpp"

#include <clocale>
#include <locale>

#include <gtest/gtest.h>
#include <unistd.h>

#include "analysis/report_model.hpp"
#include "base/error.hpp"
#include "base/files.hpp"
#include "campaign_fixture.hpp"
#include "receipts/hdf5_store.hpp"
#include "temp_folder.hpp"

namespace poros {
namespace {

namespace fs = std::filesystem;
using testing::FixtureOptions;
using testing::TempFolder;
using testing::write_campaign;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

CampaignCell cell(const std::string& method, std::vector<double> times, double memory_mb) {
  CampaignCell c;
  RunArtifact& a = c.artifact;
  a.method = method;
  a.model_id = "org/tiny";
  a.display_name = "tiny";
  a.precision = "nf4";
  a.hardware = "Some GPU";
  a.cell_key = method;
  a.group_key = "g";
  a.device = "cuda";
  a.vram_total_mb = 4096;
  a.vram_peak_mb = memory_mb;
  a.pass_s_per_step = std::move(times);
  a.n_passes = static_cast<std::int64_t>(a.pass_s_per_step.size());
  a.n_passes_expected = 3;
  a.tokens_per_step = 4096;
  c.path = method + ".json";
  return c;
}

/// resident 1.0, 1.2, 1.1 s and 2048 MiB; poros 1.3, 1.5, 1.4 s and 512 MiB; peft flagged; unsloth
/// out of memory in its second pass; accelerate_offload not run.
Campaign small_campaign() {
  Campaign c;
  c.spec = {{"spec_id", "small"},
            {"spec", {{"protocol", "shared"}}},
            {"cells",
             {{"offload",
               {{"method", "accelerate_offload"},
                {"group_key", "g"},
                {"model", "tiny"},
                {"index", 4}}}}}};
  c.cells.push_back(cell("resident", {1.0, 1.2, 1.1}, 2048));
  c.cells.push_back(cell("poros", {1.3, 1.5, 1.4}, 512));
  c.cells.push_back(cell("peft", {2.0, 2.2, 2.1}, 3000));
  c.cells.back().artifact.flags = {"suspect"};
  c.cells.back().artifact.reason = "first-step loss: 2.6 against 2.5 of resident";
  c.cells.push_back(cell("unsloth", {0.5}, 1000));
  c.cells.back().artifact.status = "oom";
  c.pending = {"offload"};
  return c;
}

const Arm& arm_of(const ReportModel& model, const std::string& method) {
  for (const Arm& arm : model.groups.at(0).arms) {
    if (arm.method == method) return arm;
  }
  throw std::runtime_error("no arm " + method);
}

TEST(ReportModel, EqualsStatisticsComputedByHand) {
  const ReportModel model = make_report_model(small_campaign());
  ASSERT_EQ(model.groups.size(), 1u);
  EXPECT_EQ(model.groups[0].reference, "resident");
  const Arm& poros = arm_of(model, "poros");
  EXPECT_DOUBLE_EQ(*poros.s_per_step, 1.4);
  EXPECT_DOUBLE_EQ(*poros.s_low, 1.3);
  EXPECT_DOUBLE_EQ(*poros.s_high, 1.5);
  EXPECT_NEAR(*poros.s_stddev, 0.0816496580927726, 1e-15);  // sqrt(0.02 / 3)
  EXPECT_NEAR(*poros.tokens_per_s, 2925.714285714286, 1e-9);
  EXPECT_DOUBLE_EQ(*poros.memory_ratio, 0.25);
  EXPECT_DOUBLE_EQ(*poros.time_ratio, 1.4 / 1.1);
  EXPECT_DOUBLE_EQ(*poros.memory_share, 0.125);
  ASSERT_TRUE(poros.time_ratio_interval);
  EXPECT_GE(poros.time_ratio_interval->low, 1.3 / 1.2);
  EXPECT_LE(poros.time_ratio_interval->high, 1.5 / 1.0);
  EXPECT_LT(poros.time_ratio_interval->low, *poros.time_ratio);
}

TEST(ReportModel, CountsAndExclusions) {
  const ReportModel model = make_report_model(small_campaign());
  EXPECT_EQ(model.counts.text(), "5 cells expected: 2 ok, 1 flagged, 1 out of memory, 1 not run");
  EXPECT_FALSE(arm_of(model, "peft").memory_ratio) << "a flagged cell is kept out of ratios";
  EXPECT_EQ(arm_of(model, "peft").s_per_step, 2.1) << "but it is shown";
  EXPECT_FALSE(arm_of(model, "unsloth").time_ratio);
  ASSERT_EQ(model.ratios.size(), 2u);  // of poros, and of peft without a comparison
}

TEST(ReportModel, AFlaggedReferenceIsNoReference) {
  Campaign campaign = small_campaign();
  campaign.cells[0].artifact.flags = {"throttled"};
  const ReportModel model = make_report_model(campaign);
  EXPECT_EQ(model.groups[0].reference, "");
  EXPECT_FALSE(arm_of(model, "poros").time_ratio);
  EXPECT_TRUE(model.ratios.empty());
}

TEST(ReportModel, ParityJoinsItsRecordOrStaysUnmeasured) {
  Campaign campaign = small_campaign();
  EXPECT_FALSE(arm_of(make_report_model(campaign), "poros").parity);
  EXPECT_TRUE(contains(report_html(campaign), "was not measured"));
  CampaignParity parity;
  parity.group_key = "g";
  parity.path = "artifacts/g/parity.1.json";
  parity.fields = {{"method_a", "poros"},           {"method_b", "resident"},
                   {"bitwise_exact", true},         {"parity_loss_max_diff", 0.0},
                   {"parity_weight_max_diff", 0.0}, {"steps", 25}};
  campaign.parity.push_back(parity);
  const ReportModel exact = make_report_model(campaign);
  EXPECT_EQ(arm_of(exact, "poros").parity->bitwise_exact, true);
  EXPECT_TRUE(
      contains(exact.summary.back(), "bit for bit the same training as resident in 1 of 1"));
  campaign.parity[0].fields["bitwise_exact"] = false;
  campaign.parity[0].fields["parity_weight_max_diff"] = 3e-7;
  const ReportModel different = make_report_model(campaign);
  EXPECT_TRUE(contains(different.summary.back(), "in only 0 of 1"));
  EXPECT_TRUE(contains(report_html(campaign), ">3.0e-07</a>"));
}

TEST(Report, NumbersLinkToTheirRecordAndMissingOnesAreDashes) {
  const std::string html = report_html(small_campaign());
  EXPECT_TRUE(contains(html, "<a href=\"poros.json\" tabindex=-1>1.40 s</a>"));
  EXPECT_TRUE(contains(html, "<a href=\"poros.json\" tabindex=-1>0.250\u00d7</a>"));
  EXPECT_TRUE(contains(html, "<a href=\"poros.json\" tabindex=-1>1.27\u00d7</a>"));
  EXPECT_TRUE(contains(html, "<a href=\"poros.json\" tabindex=-1>81.6 ms</a>"));
  EXPECT_TRUE(contains(html, "1 of 3 passes only"));
  EXPECT_TRUE(contains(html, "<td role=cell class=n>--</td>"));
  EXPECT_FALSE(contains(html, ">0 s<"));
  EXPECT_FALSE(contains(html, "DRIFT"));
  const std::string markdown = report_markdown(small_campaign());
  EXPECT_TRUE(contains(markdown, "[1.27\u00d7](poros.json)"));
  EXPECT_TRUE(contains(markdown, "5 cells expected"));
}

/// Folder and store give the same pages.
void expect_same_from_store(const fs::path& dir) {
  const TempFolder other;
  gather(dir);
  fs::copy(dir / kStoreFile, other / "alone.h5");
  const Campaign folder = load_campaign(dir), store = load_campaign(other / "alone.h5");
  EXPECT_EQ(report_html(folder), report_html(store));
  EXPECT_EQ(report_markdown(folder), report_markdown(store));
}

TEST(Report, FromTheStoreAloneIsTheSameBytes) {
  const TempFolder folder, cpu, attack;
  write_campaign(folder.path(), {});
  expect_same_from_store(folder.path());
  FixtureOptions options;
  options.device = "cpu";
  options.hardware = {"cpu"};
  write_campaign(cpu.path(), options);
  expect_same_from_store(cpu.path());
  options = {};
  options.attack = "<script>alert(1)</script>|`\"'\n";
  write_campaign(attack.path(), options);
  expect_same_from_store(attack.path());
}

/// 1.234,5: what a German locale does to numbers.
struct German : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

TEST(Report, SameBytesWhateverLocaleAndFolder) {
  const TempFolder folder;
  write_campaign(folder.path(), {});
  const auto pages = [&] {
    const Campaign campaign = load_campaign(folder.path());
    gather(folder.path());
    return report_html(campaign) + report_markdown(campaign) + read_file(folder / kStoreFile);
  };
  const std::string before = pages();
  const std::locale old = std::locale::global(std::locale(std::locale::classic(), new German));
  const std::string old_c = std::setlocale(LC_ALL, nullptr);
  for (const char* name : {"de_DE.UTF-8", "de_DE.utf8", "C.UTF-8"}) std::setlocale(LC_ALL, name);
  const fs::path cwd = fs::current_path();
  fs::current_path("/");
  const std::string after = pages();
  fs::current_path(cwd);
  std::setlocale(LC_ALL, old_c.c_str());
  std::locale::global(old);
  EXPECT_TRUE(before == after);
}

TEST(Report, WritesTheFilesThatAreAskedFor) {
  const TempFolder folder;
  write_campaign(folder.path(), {});
  const ReportPaths paths = write_report(folder.path(), folder.path(), true, false);
  EXPECT_EQ(paths.html, folder / "report.html");
  EXPECT_TRUE(paths.markdown.empty());
  EXPECT_TRUE(fs::exists(folder / "report.html"));
  EXPECT_FALSE(fs::exists(folder / "report.md"));
  write_report(folder.path(), folder.path(), false, true);
  EXPECT_TRUE(fs::exists(folder / "report.md"));
}

TEST(Report, CpuCellsShowHostMemoryAndSaySo) {
  const TempFolder folder;
  FixtureOptions options;
  options.device = "cpu";
  options.hardware = {"cpu"};
  options.models = {"demo/kjv-5m"};
  write_campaign(folder.path(), options);
  const std::string html = report_html(load_campaign(folder.path()));
  EXPECT_TRUE(contains(html, "Peak host memory (RSS)"));
  EXPECT_TRUE(contains(html, "unsloth: needs CUDA"));
  EXPECT_FALSE(contains(html, "of the card"));
}

TEST(Report, LossCurvesAreTheRecordedOnes) {
  Campaign campaign = small_campaign();
  for (const std::size_t i : {0u, 1u}) {
    CampaignPass pass;
    pass.record.steps.loss = {4, 3, 1};
    pass.path = "artifacts/0.1.json";
    campaign.cells[i].passes.push_back(pass);
  }
  const ReportModel model = make_report_model(campaign);
  EXPECT_EQ(arm_of(model, "poros").loss.values, (std::vector<double>{4, 3, 1}));
  // The axis runs from 1 (y 210) to 4 (y 14) and from step 1 (x 50) to 3 (x 408).
  EXPECT_TRUE(contains(report_html(campaign), "points=\"50,14 229,79.3 408,210\""));
}

TEST(Report, EmptyAndOldCampaigns) {
  EXPECT_TRUE(contains(report_html(Campaign{}), "0 cells expected"));
  EXPECT_TRUE(contains(report_markdown(Campaign{}), "0 cells expected"));
  const TempFolder folder;
  write_file_durably(
      folder / "results.jsonl",
      R"({"method":"resident","model_id":"Qwen/Qwen2.5-32B","display_name":"Qwen2.5-32B","precision":"nf4","hardware":"NVIDIA B300","vram_peak_mb":42842.0,"s_per_step":1.47,"n_passes":3,"status":"ok","arch":"qwen2"})"
      "\n"
      R"({"method":"poros","model_id":"Qwen/Qwen2.5-32B","display_name":"Qwen2.5-32B","precision":"nf4","hardware":"NVIDIA B300","vram_peak_mb":11085.0,"s_per_step":3.21,"n_passes":3,"status":"ok","arch":"qwen2","bitwise_exact":false})"
      "\n");
  const std::string html = report_html(load_campaign(folder.path()));
  EXPECT_TRUE(contains(html, "records of the Python original"));
  EXPECT_TRUE(contains(html, ">2.18\u00d7</a>"));
  EXPECT_TRUE(contains(html, "was not measured"));
}

}  // namespace
}  // namespace poros
