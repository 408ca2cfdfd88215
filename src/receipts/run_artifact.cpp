// SPDX-License-Identifier: Apache-2.0
#include "receipts/run_artifact.hpp"

#include <algorithm>
#include <array>

#include "receipts/json_fields.hpp"

namespace poros {
namespace {

template <typename Record, typename Visit>
void visit_fields(Record& a, Visit&& visit) {
  visit("method", a.method);
  visit("model_id", a.model_id);
  visit("display_name", a.display_name);
  visit("precision", a.precision);
  visit("hardware", a.hardware);
  visit("vram_total_mb", a.vram_total_mb);
  visit("cuda_version", a.cuda_version);
  visit("torch_version", a.torch_version);
  visit("transformers_version", a.transformers_version);
  visit("bitsandbytes_version", a.bitsandbytes_version);
  visit("gpu_uuid", a.gpu_uuid);
  visit("vram_peak_mb", a.vram_peak_mb);
  visit("vram_avg_mb", a.vram_avg_mb);
  visit("vram_resident_mb", a.vram_resident_mb);
  visit("vram_unsloth_mb", a.vram_unsloth_mb);
  visit("vram_poros_mb", a.vram_poros_mb);
  visit("vram_avg_resident_mb", a.vram_avg_resident_mb);
  visit("vram_avg_unsloth_mb", a.vram_avg_unsloth_mb);
  visit("vram_avg_poros_mb", a.vram_avg_poros_mb);
  visit("s_per_step", a.s_per_step);
  visit("tok_per_sec", a.tok_per_sec);
  visit("n_passes", a.n_passes);
  visit("s_per_step_min", a.s_per_step_min);
  visit("s_per_step_max", a.s_per_step_max);
  visit("s_per_step_stddev", a.s_per_step_stddev);
  visit("pass_s_per_step", a.pass_s_per_step);
  visit("pass_vram_peaks_mb", a.pass_vram_peaks_mb);
  visit("pass_vram_avgs_mb", a.pass_vram_avgs_mb);
  visit("parity_loss_max_diff", a.parity_loss_max_diff);
  visit("parity_weight_max_diff", a.parity_weight_max_diff);
  visit("bitwise_exact", a.bitwise_exact);
  visit("vram_saved_vs_resident_pct", a.vram_saved_vs_resident_pct);
  visit("vram_saved_vs_unsloth_pct", a.vram_saved_vs_unsloth_pct);
  visit("slowdown_vs_resident_x", a.slowdown_vs_resident_x);
  visit("slowdown_vs_unsloth_x", a.slowdown_vs_unsloth_x);
  visit("oom", a.oom);
  visit("status", a.status);
  visit("error_message", a.error_message);
  visit("steps", a.steps);
  visit("seq_len", a.seq_len);
  visit("block_size", a.block_size);
  visit("entrypoint", a.entrypoint);
  visit("arch", a.arch);
  visit("run_id", a.run_id);
  visit("timestamp", a.timestamp);

  visit("cell_key", a.cell_key);
  visit("group_key", a.group_key);
  visit("spec_sha256", a.spec_sha256);
  visit("spec_id", a.spec_id);
  visit("protocol", a.protocol);
  visit("protocol_warnings", a.protocol_warnings);
  visit("device", a.device);
  visit("reason", a.reason);
  visit("flags", a.flags);
  visit("n_passes_expected", a.n_passes_expected);
  visit("host_rss_peak_mb", a.host_rss_peak_mb);
  visit("pinned_mb", a.pinned_mb);
  visit("first_step_loss", a.first_step_loss);
  visit("mean_loss_first10", a.mean_loss_first10);
  visit("mean_loss_last10", a.mean_loss_last10);
  visit("load_s", a.load_s);
  visit("planned_peak_mb", a.planned_peak_mb);
  visit("joule_per_token", a.joule_per_token);
  visit("trainable_params", a.trainable_params);
  visit("tokens_per_step", a.tokens_per_step);
  visit("token_sha256", a.token_sha256);
  visit("adapter_sha256", a.adapter_sha256);
  visit("weights", a.weights);
  visit("cell_build", a.cell_build);
  visit("git_commit", a.git_commit);
  visit("git_dirty", a.git_dirty);
  visit("spec_cell", a.spec_cell);
  visit("environment", a.environment);
  visit("passes", a.passes);
}

void null_if_zero(std::optional<double>& value) {
  if (value && *value == 0.0) value.reset();
}

/// The original writes 0.0 where nothing was measured and bitwise_exact = false where parity was
/// not; its failed cells carry parity 0.0 and count one pass.
void mend_original(RunArtifact& a) {
  null_if_zero(a.vram_total_mb);
  null_if_zero(a.vram_peak_mb);
  null_if_zero(a.vram_avg_mb);
  null_if_zero(a.s_per_step);
  null_if_zero(a.tok_per_sec);
  if (a.status != "ok") {
    a.parity_loss_max_diff.reset();
    a.parity_weight_max_diff.reset();
    a.n_passes = 0;
  }
  if (!a.parity_loss_max_diff && !a.parity_weight_max_diff) a.bitwise_exact.reset();
}

}  // namespace

Json to_json(const RunArtifact& artifact) {
  Json json = Json::object();
  json["schema_version"] = artifact.schema_version;
  visit_fields(artifact, FieldWriter{json});
  return json;
}

RunArtifact run_artifact_from_json(const Json& json, const std::string& origin) {
  if (!json.is_object()) fail(Fault::input, "{}: an artifact must be a JSON object", origin);
  RunArtifact artifact;
  artifact.schema_version = json_find<std::string>(json, "schema_version", origin).value_or("");
  const bool original = artifact.schema_version.empty();
  const std::string major = std::to_string(kArtifactSchemaMajor) + ".";
  if (!original && !artifact.schema_version.starts_with(major)) {
    fail(Fault::input, "{}: artifact schema {}; this program reads {}x", origin,
         artifact.schema_version, major);
  }
  for (const char* key : {"method", "model_id", "precision"}) {
    (void)json_get<std::string>(json, key, origin);  // says so when it is missing
  }
  if (original) artifact.n_passes = 1;  // the original's default
  visit_fields(artifact, FieldReader{json, origin});
  static constexpr std::array kStatus{"ok", "oom", "error", "skipped"};
  if (std::find(kStatus.begin(), kStatus.end(), artifact.status) == kStatus.end()) {
    fail(Fault::input, "{}: status \"{}\" is none of ok, oom, error, skipped", origin,
         artifact.status);
  }
  if (original) mend_original(artifact);
  if (artifact.display_name.empty()) artifact.display_name = artifact.model_id;
  return artifact;
}

}  // namespace poros
