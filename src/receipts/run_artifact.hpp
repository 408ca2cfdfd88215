// SPDX-License-Identifier: Apache-2.0
// RunArtifact: what one cell yielded over its passes ({method}_{arch}_{precision}.json). The field
// names of the Python original are kept, so that older artifacts and tools go on working; fields of
// our own stand beside them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "receipts/pass_record.hpp"

namespace poros {

inline constexpr int kArtifactSchemaMajor = 1;
inline constexpr const char* kArtifactSchema = "1.0";

struct RunArtifact {
  // --- the original's fields
  std::string method, model_id, display_name, precision, hardware;
  std::optional<double> vram_total_mb;
  std::optional<std::string> cuda_version, torch_version, transformers_version,
      bitsandbytes_version, gpu_uuid;
  std::optional<double> vram_peak_mb, vram_avg_mb;  // worst pass; mean over passes
  std::optional<double> s_per_step, tok_per_sec;    // median over passes of the pass median
  std::int64_t n_passes = 0;                        // passes that ended ok
  std::optional<double> s_per_step_min, s_per_step_max, s_per_step_stddev;
  std::vector<double> pass_s_per_step, pass_vram_peaks_mb, pass_vram_avgs_mb;
  std::optional<double> parity_loss_max_diff, parity_weight_max_diff;  // null: not measured
  std::optional<bool> bitwise_exact;                                   // null: not measured
  std::optional<double> vram_saved_vs_resident_pct, vram_saved_vs_unsloth_pct,
      slowdown_vs_resident_x, slowdown_vs_unsloth_x;
  bool oom = false;
  std::string status = "ok";
  std::optional<std::string> error_message;
  std::int64_t steps = 0, seq_len = 0;
  std::optional<std::int64_t> block_size;
  std::string arch;  // model slug
  std::optional<std::string> run_id, timestamp, entrypoint;
  // The group's other arms beside this one, as the original wrote them.
  std::optional<double> vram_resident_mb, vram_unsloth_mb, vram_poros_mb, vram_avg_resident_mb,
      vram_avg_unsloth_mb, vram_avg_poros_mb;

  // --- ours
  std::string schema_version = kArtifactSchema;  // empty: written by the Python original
  std::string cell_key, group_key, spec_sha256, spec_id, protocol, device;
  std::optional<std::string> reason;
  std::vector<std::string> flags;
  std::vector<std::string> protocol_warnings;  // of protocol native, for people
  std::int64_t n_passes_expected = 0;
  std::optional<double> host_rss_peak_mb, pinned_mb, first_step_loss, mean_loss_first10,
      mean_loss_last10, load_s, planned_peak_mb;
  std::optional<double> joule_per_token;  // of the whole GPU over the timed steps
  std::optional<std::int64_t> trainable_params, tokens_per_step;
  std::string token_sha256, adapter_sha256, weights;
  std::string cell_build;  // sha256 of poros-cell, or of the runner's files and library versions
  std::string git_commit;
  bool git_dirty = false;
  Json spec_cell = Json::object();    // the CellSpec
  Json environment = Json::object();  // allow-listed snapshot
  Json passes = Json::array();        // [{pass, attempt, status, artifact_path, artifact_sha256}]
};

[[nodiscard]] Json to_json(const RunArtifact& artifact);
/// Reads ours and the original's (no schema_version; missing fields of ours stay at their
/// defaults). The original writes 0.0 and false for what it did not measure: these become null.
/// @throws Error(Fault::input) naming origin and key.
[[nodiscard]] RunArtifact run_artifact_from_json(const Json& json, const std::string& origin);

}  // namespace poros
