// SPDX-License-Identifier: Apache-2.0
// From passes to an artifact: statistics, equal work, comparison of arms.
#include "campaign/artifacts.hpp"

#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

namespace poros {
namespace {

PlannedCell cell_of(const std::string& method) {
  PlannedCell cell;
  cell.spec.method = method;
  cell.spec.device = "cpu";
  cell.spec.model.model_id = "./model";
  cell.spec.training.steps = 20;
  cell.spec.training.seq_len = 100;
  cell.spec.training.batch_size = 2;
  cell.spec.training.gradient_accumulation_steps = 3;
  cell.key = std::string(64, method[0] == 'p' ? 'a' : 'b');
  cell.model = "model";
  return cell;
}

RecordedPass pass_of(const std::string& method, std::int64_t number, double s_per_step,
                     double peak_mb) {
  PassRecord record;
  record.method = method;
  record.cell_key = "k";
  record.pass = number;
  record.s_per_step = s_per_step;
  record.vram_peak_mb = peak_mb;
  record.steps.allocated_mb = {peak_mb - 2, peak_mb};
  for (int step = 0; step < 20; ++step) record.steps.loss.push_back(4.0 - 0.1 * step);
  record.steps.allocated_mb.resize(20, peak_mb - 1);
  record.token_sha256 = "t";
  record.adapter_sha256 = "a";
  record.trainable_params = 10;
  record.base_bytes["nf4"] = 1000;
  record.finished_at = "2026-01-0" + std::to_string(number + 1) + "T00:00:00.000Z";
  return {record, "artifacts/k/" + std::to_string(number) + ".1.json", "hash"};
}

const ArtifactContext kContext{"spec", "sha", "run", 3};

TEST(Artifacts, StatisticsOverThreePasses) {
  const RunArtifact artifact =
      make_artifact(kContext, cell_of("poros"),
                    {pass_of("poros", 0, 0.4, 100), pass_of("poros", 1, 0.9, 120),
                     pass_of("poros", 2, 0.5, 110)});
  EXPECT_EQ(artifact.status, "ok");
  EXPECT_EQ(artifact.n_passes, 3);
  EXPECT_DOUBLE_EQ(*artifact.s_per_step, 0.5);
  EXPECT_DOUBLE_EQ(*artifact.s_per_step_min, 0.4);
  EXPECT_DOUBLE_EQ(*artifact.s_per_step_max, 0.9);
  // mean 0.6, squares 0.04 + 0.09 + 0.01 = 0.14; sqrt(0.14 / 3)
  EXPECT_NEAR(*artifact.s_per_step_stddev, 0.21602468994692867, 1e-15);
  EXPECT_DOUBLE_EQ(*artifact.vram_peak_mb, 120);
  EXPECT_DOUBLE_EQ(artifact.pass_vram_avgs_mb.at(0), 99);  // (98 + 100 + 18 x 99) / 20
  EXPECT_DOUBLE_EQ(*artifact.vram_avg_mb, 109);
  EXPECT_EQ(*artifact.tokens_per_step, 600);
  EXPECT_DOUBLE_EQ(*artifact.tok_per_sec, 1200);
  EXPECT_NEAR(*artifact.mean_loss_first10, 3.55, 1e-12);
  EXPECT_NEAR(*artifact.mean_loss_last10, 2.55, 1e-12);
  EXPECT_EQ(*artifact.timestamp, "2026-01-03T00:00:00.000Z");
  EXPECT_EQ(artifact.passes.size(), 3U);
}

TEST(Artifacts, AFailedPassDecidesTheStatusAndGivesNoNumbers) {
  RecordedPass bad = pass_of("poros", 1, 9, 900);
  bad.record.status = "oom";
  bad.record.error_message = "too big";
  const RunArtifact artifact =
      make_artifact(kContext, cell_of("poros"), {pass_of("poros", 0, 0.4, 100), bad});
  EXPECT_EQ(artifact.status, "oom");
  EXPECT_TRUE(artifact.oom);
  EXPECT_EQ(*artifact.error_message, "too big");
  EXPECT_EQ(artifact.n_passes, 1);
  EXPECT_DOUBLE_EQ(*artifact.s_per_step, 0.4);
  EXPECT_DOUBLE_EQ(*artifact.vram_peak_mb, 100);
}

TEST(Artifacts, WhatWasNotMeasuredIsMissing) {
  RecordedPass pass = pass_of("poros", 0, 1, 1);
  pass.record.s_per_step.reset();
  pass.record.vram_peak_mb.reset();
  pass.record.steps = {};
  const RunArtifact artifact = make_artifact(kContext, cell_of("poros"), {pass});
  EXPECT_FALSE(artifact.s_per_step || artifact.vram_peak_mb || artifact.vram_avg_mb ||
               artifact.tok_per_sec || artifact.first_step_loss || artifact.mean_loss_first10 ||
               artifact.s_per_step_stddev || artifact.bitwise_exact);
}

struct Group {
  std::vector<RunArtifact> artifacts;
  std::vector<PassRecord> records;
  void add(const std::string& method, const RecordedPass& pass) {
    artifacts.push_back(make_artifact(kContext, cell_of(method), {pass}));
    records.push_back(pass.record);
  }
  void judge() {
    std::vector<RunArtifact*> arms;
    std::vector<const PassRecord*> passes;
    for (RunArtifact& artifact : artifacts) arms.push_back(&artifact);
    for (const PassRecord& record : records) passes.push_back(&record);
    check_equal_work(arms, passes);
    compare_arms(arms);
  }
};

TEST(Artifacts, ArmsAreComparedWithResidentAndUnsloth) {
  Group group;
  group.add("poros", pass_of("poros", 0, 0.9, 250));
  group.add("resident", pass_of("resident", 0, 0.6, 1000));
  group.add("unsloth", pass_of("unsloth", 0, 0.45, 500));
  group.judge();
  EXPECT_DOUBLE_EQ(*group.artifacts[0].vram_saved_vs_resident_pct, 75);
  EXPECT_DOUBLE_EQ(*group.artifacts[0].vram_saved_vs_unsloth_pct, 50);
  EXPECT_DOUBLE_EQ(*group.artifacts[0].slowdown_vs_resident_x, 1.5);
  EXPECT_DOUBLE_EQ(*group.artifacts[0].slowdown_vs_unsloth_x, 2.0);
  EXPECT_DOUBLE_EQ(*group.artifacts[1].slowdown_vs_unsloth_x, 0.6 / 0.45);
  EXPECT_FALSE(group.artifacts[1].slowdown_vs_resident_x.has_value());
  EXPECT_DOUBLE_EQ(*group.artifacts[1].vram_poros_mb, 250);
}

TEST(Artifacts, EachKindOfUnequalWorkIsSuspect) {
  const auto reason = [](const std::function<void(PassRecord&)>& change) {
    Group group;
    group.add("resident", pass_of("resident", 0, 0.6, 1000));
    RecordedPass peft = pass_of("peft", 0, 0.6, 1000);
    change(peft.record);
    group.add("peft", peft);
    group.judge();
    EXPECT_EQ(group.artifacts[1].slowdown_vs_resident_x.has_value(),
              group.artifacts[1].flags.empty());
    return group.artifacts[1].reason.value_or("equal");
  };
  EXPECT_EQ(reason([](PassRecord&) {}), "equal");
  EXPECT_EQ(reason([](PassRecord& r) { r.steps.loss[0] += 9e-4; }), "equal");
  EXPECT_EQ(reason([](PassRecord& r) { r.steps.loss[0] += 2e-3; }),
            "first-step loss: 4.002000 against 4.000000 (resident)");
  EXPECT_EQ(reason([](PassRecord& r) { r.token_sha256 = "x"; }),
            "other tokens: x against t (resident)");
  EXPECT_EQ(reason([](PassRecord& r) { r.adapter_sha256 = "x"; }),
            "other initial adapter: x against a (resident)");
  EXPECT_EQ(reason([](PassRecord& r) { r.trainable_params = 20; }),
            "trainable parameters: 20 against 10 (resident)");
  EXPECT_EQ(reason([](PassRecord& r) {
              r.base_bytes = {{"bf16", 4000}};
            }),
            "its base is not NF4 (resident)");
  EXPECT_EQ(reason([](PassRecord& r) { r.base_bytes["nf4"] = 1500; }),
            "bytes of the NF4 base: 1500 against 1000 (resident)");
}

TEST(Artifacts, EnergyATokenIsThatOfTheTimedSteps) {
  RecordedPass pass = pass_of("poros", 0, 0.9, 250);
  EXPECT_FALSE(make_artifact(kContext, cell_of("poros"), {pass}).joule_per_token.has_value());
  pass.record.driver["gpu_samples"] = {{"timed_energy_j", 900.0}, {"timed_steps", 3}};
  const RunArtifact artifact = make_artifact(kContext, cell_of("poros"), {pass});
  EXPECT_DOUBLE_EQ(artifact.joule_per_token.value_or(NAN),
                   300.0 / static_cast<double>(*artifact.tokens_per_step));
  pass.record.driver["gpu_samples"] = {{"timed_energy_j", nullptr}, {"timed_steps", nullptr}};
  EXPECT_FALSE(make_artifact(kContext, cell_of("poros"), {pass}).joule_per_token.has_value());
}

TEST(Artifacts, NativeProtocolWarnsAndDoesNotCallOtherDataSuspect) {
  Group group;
  group.add("resident", pass_of("resident", 0, 0.6, 1000));
  group.add("poros", pass_of("poros", 0, 0.9, 250));
  RecordedPass peft = pass_of("peft", 0, 0.6, 1000);
  peft.record.token_sha256 = "one batch";
  peft.record.steps.loss[0] += 3;
  group.add("peft", peft);
  for (RunArtifact& artifact : group.artifacts) {
    EXPECT_TRUE(artifact.protocol_warnings.empty());
    artifact.protocol = "native";
  }
  group.judge();
  EXPECT_TRUE(group.artifacts[2].flags.empty()) << group.artifacts[2].reason.value_or("");
  group.artifacts[2].trainable_params = 20;  // what is compared all the same
  group.artifacts[1].token_sha256 = "other";
  group.judge();
  EXPECT_EQ(group.artifacts[2].reason, "trainable parameters: 20 against 10 (resident)");
  EXPECT_EQ(group.artifacts[1].reason, "other tokens: other against t (resident)");
  PlannedCell cell = cell_of("peft");
  cell.spec.protocol = "native";
  const std::vector<std::string> said = make_artifact(kContext, cell, {peft}).protocol_warnings;
  ASSERT_EQ(said.size(), 2U);
  EXPECT_NE(said[0].find("one synthetic batch"), std::string::npos);
  EXPECT_NE(said[1].find("bare AdamW"), std::string::npos);
}

}  // namespace
}  // namespace poros
