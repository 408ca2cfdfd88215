// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "receipts/pass_record.hpp"
#include "receipts/run_artifact.hpp"

namespace poros {
namespace {

PassRecord full_pass() {
  PassRecord r;
  r.purpose = "parity";
  r.cell_key = std::string(64, 'a');
  r.method = "poros";
  r.pass = 2;
  r.attempt = 3;
  r.status = "error";
  r.reason = "diverged";
  r.error_message = "loss is nan at step 2 | \"quoted\"\n<b>";
  r.flags = {"suspect", "capped"};
  r.started_at = "2026-12-01T03:13:30.123Z";
  r.finished_at = "2026-12-01T03:14:30.123Z";
  r.steps.loss = {2.5, 1.0 / 3.0};
  r.steps.grad_norm = {0.125, 1e-300};
  r.steps.learning_rate = {0, 2e-5};
  r.steps.s_per_step = {0.5, 0.25};
  r.steps.allocated_mb = {10, 11};
  r.steps.reserved_mb = {12, 13};
  r.steps.host_rss_mb = {100, 101};
  r.steps.supervised_tokens = {511, 510};
  r.s_per_step = 0.25;
  r.load_s = 1.5;
  r.vram_peak_mb = 11;
  r.vram_reserved_peak_mb = 13;
  r.vram_load_peak_mb = 20;
  r.host_rss_peak_mb = 101;
  r.pinned_mb = 0;
  r.planned_peak_mb = 10.5;
  r.trainable_params = 123456789012;
  r.token_sha256 = "t";
  r.adapter_sha256 = "b";
  r.weights = "random(7)";
  r.base_bytes = {{"nf4", 1024}, {"bf16", 8}};
  r.hashes = {{"l0", "g0", {{"gradient", {{"q", "h0"}, {"k", "h1"}}}, {"weight", {{"q", "h2"}}}}},
              {"l1", "g1", {}}};
  r.device = {{"kind", "cpu"}};
  r.versions = {{"torch", "2.11.0"}};
  r.arm = {{"attention", "flash"}};
  r.driver = {{"exit", 1}};
  return r;
}

TEST(PassRecord, SurvivesJsonWithEveryField) {
  const PassRecord before = full_pass();
  const Json json = to_json(before);
  const std::string text = dump_json(json);
  const PassRecord after = pass_record_from_json(parse_json(text, "test"), "test");
  EXPECT_EQ(dump_json(to_json(after)), text);
  EXPECT_EQ(after.steps.loss, before.steps.loss);  // exact, not nearly
  EXPECT_EQ(after.hashes.at(0).tensors.at("gradient").at("k"), "h1");
  EXPECT_EQ(after.trainable_params, before.trainable_params);
  for (const StepColumn& column : step_columns()) {
    EXPECT_EQ(after.steps.*column.values, before.steps.*column.values) << column.name;
    EXPECT_EQ((after.steps.*column.values).size(), 2u) << column.name;
  }
}

TEST(PassRecord, MissingIsNullNotZero) {
  PassRecord record;
  record.cell_key = "k";
  record.method = "peft";
  const Json json = to_json(record);
  for (const char* key :
       {"s_per_step", "load_s", "vram_peak_mb", "vram_reserved_peak_mb", "vram_load_peak_mb",
        "host_rss_peak_mb", "pinned_mb", "planned_peak_mb", "trainable_params"}) {
    EXPECT_TRUE(json.at(key).is_null()) << key;
  }
}

TEST(PassRecord, ReadsTheLeastThatARunnerWrites) {
  const auto record = pass_record_from_json(
      parse_json(R"({"cell_key":"k","method":"peft","status":"skipped","reason":"no_cuda",
                     "error_message":null,"steps":{"loss":[1,2.5]}})",
                 "least"),
      "least");
  EXPECT_EQ(record.reason, "no_cuda");
  EXPECT_EQ(record.steps.loss, (std::vector<double>{1, 2.5}));
  EXPECT_EQ(record.attempt, 1);
  EXPECT_FALSE(record.s_per_step);
}

std::string refusal(const std::string& text) {
  try {
    (void)pass_record_from_json(parse_json(text, "file.json"), "file.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::input);
    return error.what();
  }
  return "accepted";
}

TEST(PassRecord, RefusalsNameOriginAndKey) {
  const auto expect = [](const std::string& text, const std::string& part) {
    const std::string message = refusal(text);
    EXPECT_TRUE(message.starts_with("file.json")) << message;
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  const std::string start = R"({"cell_key":"k","method":"m","status":"ok")";
  expect("[]", "object");
  expect(R"({"method":"m","status":"ok"})", "cell_key");
  expect(R"({"cell_key":"k","method":"m","status":"fine"})", "fine");
  expect(start + R"(,"v":2})", "version 2");
  expect(start + R"(,"pass":-1})", "out of range");
  expect(start + R"(,"pass":"0"})", "\"pass\"");
  expect(start + R"(,"purpose":"fun"})", "fun");
  expect(start + R"(,"vram_peak_mb":"1"})", "vram_peak_mb");
  expect(start + R"(,"steps":{"loss":[1,2],"grad_norm":[1]}})", "grad_norm");
  expect(start + R"(,"steps":{"loss":[1,null]}})", "loss");
  expect(start + R"(,"steps":7})", "steps");
  expect(start + R"(,"flags":"suspect"})", "flags");
  expect(start + R"(,"device":[]})", "device");
  expect(start + R"(,"base_bytes":{"nf4":"many"}})", "nf4");
  expect(start + R"(,"hashes":[{"loss":"a","grad_norm":"b","tensors":{"weight":[]}}]})", "weight");
  expect(start + R"(,"hashes":[{"loss":"a"}]})", "hashes[0]");
}

RunArtifact full_artifact() {
  RunArtifact a;
  Json json = to_json(a);
  // Each field gets a value of its own kind, so that a forgotten one shows.
  double number = 1.5;
  for (auto& [key, value] : json.items()) {
    if (key == "schema_version" || key == "status") continue;
    if (value.is_null()) value = number += 1;
    if (value.is_string()) value = "text of " + key;
    if (value.is_boolean()) value = true;
    if (value.is_number_integer()) value = static_cast<int>(number += 1);
    if (value.is_object()) value = {{"in", key}};
    if (value.is_array()) value = Json::array();
  }
  for (const char* key :
       {"cuda_version", "torch_version", "transformers_version", "bitsandbytes_version", "gpu_uuid",
        "error_message", "run_id", "timestamp", "entrypoint", "reason"}) {
    json[key] = std::string("text of ") + key;
  }
  for (const char* key : {"block_size", "trainable_params", "tokens_per_step"}) json[key] = 17;
  json["bitwise_exact"] = false;
  json["pass_s_per_step"] = {1.25, 2};
  json["pass_vram_peaks_mb"] = {1, 2};
  json["pass_vram_avgs_mb"] = {3, 4};
  json["flags"] = {"suspect"};
  json["passes"] = {{{"pass", 0}, {"artifact_path", "artifacts/k/0.1.json"}}};
  return run_artifact_from_json(json, "full");
}

TEST(RunArtifact, SurvivesJsonWithEveryField) {
  const std::string text = dump_json(to_json(full_artifact()));
  EXPECT_EQ(text.find("null"), std::string::npos) << text;
  const auto again = run_artifact_from_json(parse_json(text, "t"), "t");
  EXPECT_EQ(dump_json(to_json(again)), text);
  ASSERT_TRUE(again.bitwise_exact);
  EXPECT_FALSE(*again.bitwise_exact);
}

// Every field of the original, by its name.
TEST(RunArtifact, KeepsTheOriginalsFieldNames) {
  const Json json = to_json(RunArtifact{});
  for (const char* key : {"method",
                          "model_id",
                          "display_name",
                          "precision",
                          "hardware",
                          "vram_total_mb",
                          "cuda_version",
                          "torch_version",
                          "transformers_version",
                          "bitsandbytes_version",
                          "gpu_uuid",
                          "vram_peak_mb",
                          "vram_avg_mb",
                          "vram_resident_mb",
                          "vram_unsloth_mb",
                          "vram_poros_mb",
                          "vram_avg_resident_mb",
                          "vram_avg_unsloth_mb",
                          "vram_avg_poros_mb",
                          "s_per_step",
                          "tok_per_sec",
                          "n_passes",
                          "s_per_step_min",
                          "s_per_step_max",
                          "s_per_step_stddev",
                          "pass_s_per_step",
                          "pass_vram_peaks_mb",
                          "pass_vram_avgs_mb",
                          "parity_loss_max_diff",
                          "parity_weight_max_diff",
                          "bitwise_exact",
                          "vram_saved_vs_resident_pct",
                          "vram_saved_vs_unsloth_pct",
                          "slowdown_vs_resident_x",
                          "slowdown_vs_unsloth_x",
                          "oom",
                          "status",
                          "error_message",
                          "steps",
                          "seq_len",
                          "block_size",
                          "entrypoint",
                          "arch",
                          "run_id",
                          "timestamp"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_TRUE(json.at("bitwise_exact").is_null());
  EXPECT_TRUE(json.at("s_per_step").is_null());
}

TEST(RunArtifact, TheOriginalsZerosAreNotMeasurements) {
  const auto failed = run_artifact_from_json(
      parse_json(R"({"method":"poros","model_id":"Qwen/Qwen2.5-7B","display_name":"Qwen2.5-7B",
                     "precision":"nf4","hardware":"","vram_total_mb":0.0,"vram_peak_mb":0.0,
                     "vram_avg_mb":0.0,"s_per_step":0.0,"n_passes":1,"bitwise_exact":true,
                     "parity_loss_max_diff":0.0,"parity_weight_max_diff":0.0,"oom":true,
                     "status":"oom","error_message":"CUDA out of memory","steps":0,"seq_len":512,
                     "arch":"","step_metrics":null})",
                 "old"),
      "old");
  EXPECT_EQ(failed.schema_version, "");
  EXPECT_FALSE(failed.vram_peak_mb || failed.vram_total_mb || failed.vram_avg_mb);
  EXPECT_FALSE(failed.s_per_step);
  EXPECT_FALSE(failed.parity_loss_max_diff || failed.parity_weight_max_diff);
  EXPECT_FALSE(failed.bitwise_exact);
  EXPECT_EQ(failed.n_passes, 0);

  const auto good = run_artifact_from_json(
      parse_json(R"({"method":"resident","model_id":"m","display_name":"","precision":"nf4",
                     "vram_peak_mb":42842.0,"s_per_step":1.47,"n_passes":3,"bitwise_exact":false,
                     "parity_loss_max_diff":null,"status":"ok","arch":"qwen2"})",
                 "old"),
      "old");
  EXPECT_EQ(good.vram_peak_mb, 42842.0);
  EXPECT_EQ(good.display_name, "m");
  EXPECT_FALSE(good.bitwise_exact) << "false was written for what nobody measured";
}

TEST(RunArtifact, RefusesAnotherMajorSchemaAndBadFields) {
  const auto read = [](const std::string& text) {
    (void)run_artifact_from_json(parse_json(text, "a.json"), "a.json");
  };
  const std::string start = R"({"method":"m","model_id":"i","precision":"nf4")";
  EXPECT_NO_THROW(read(start + R"(,"schema_version":"1.7"})"));
  EXPECT_THROW(read(start + R"(,"schema_version":"2.0"})"), Error);
  EXPECT_THROW(read(start + R"(,"schema_version":"10.0"})"), Error);
  EXPECT_THROW(read(start + R"(,"s_per_step":"fast"})"), Error);
  EXPECT_THROW(read(start + R"(,"status":"meh"})"), Error);
  EXPECT_THROW(read(R"({"method":"m","model_id":"i"})"), Error);
}

}  // namespace
}  // namespace poros
