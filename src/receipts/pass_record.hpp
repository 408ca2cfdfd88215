// SPDX-License-Identifier: Apache-2.0
// What one pass of a cell measured: written by poros-cell or a runner as result file, completed by
// the driver (exit status, log, host) and kept as artifacts/<key>/<pass>.<attempt>.json.
// Missing is missing: an unmeasured number is null, never 0. Fields named _mb are 2^20 bytes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.hpp"

namespace poros {

inline constexpr int kPassRecordVersion = 1;

/// One value an optimizer step, all vectors of equal length or empty where not measured.
struct StepSeries {
  std::vector<double> loss;           // mean over the step's supervised tokens [nat]
  std::vector<double> grad_norm;      // global L2 norm before clipping
  std::vector<double> learning_rate;  // used in that step
  std::vector<double> s_per_step;     // device-synchronised wall time [s]
  std::vector<double> allocated_mb;   // allocator, at the end of the step
  std::vector<double> reserved_mb;
  std::vector<double> host_rss_mb;
  std::vector<double> supervised_tokens;
};

/// A series of StepSeries with the name and unit that JSON, HDF5 and reports give it.
struct StepColumn {
  const char* name;
  const char* unit;
  std::vector<double> StepSeries::*values;
};
[[nodiscard]] std::span<const StepColumn> step_columns();

/// Hash of each tensor after a step (parity passes): sha256, first 32 hex digits.
struct StepHashes {
  std::string loss, grad_norm;
  // kind ("gradient", "exp_avg", "exp_avg_sq", "weight") -> PEFT tensor name -> hash
  std::map<std::string, std::map<std::string, std::string>> tensors;
};

struct PassRecord {
  std::string purpose = "timed";  // timed | parity
  std::string cell_key, method;
  std::int64_t pass = 0, attempt = 1;
  std::string status = "ok";  // ok | oom | error | skipped
  std::string reason;  // refines status: timeout, lost, diverged, no_cuda, not_installed, ...
  std::string error_message;
  std::vector<std::string> flags;  // suspect, throttled, shared_host, capped
  std::string started_at, finished_at;

  StepSeries steps;
  std::optional<double> s_per_step;  // median after the warm-up steps [s]
  std::optional<double> load_s;      // process start to first step [s]
  std::optional<double> vram_peak_mb, vram_reserved_peak_mb, vram_load_peak_mb;
  std::optional<double> host_rss_peak_mb, pinned_mb;
  std::optional<double> planned_peak_mb;  // what the memory plan foretold (own arms)

  std::optional<std::int64_t> trainable_params;
  std::string token_sha256, adapter_sha256, weights;  // weights: pretrained@<hash> | random(<seed>)
  std::map<std::string, double> base_bytes;           // bytes of the frozen base by storage type
  std::vector<StepHashes> hashes;                     // parity passes only
  Json device = Json::object();                       // kind, name, uuid, total memory
  Json versions = Json::object();                     // library name -> version
  Json arm = Json::object();                          // what the arm chose: attention, kernels, ...
  Json driver = Json::object();                       // added by the driver: exit, log, host, argv
};

[[nodiscard]] Json to_json(const PassRecord& record);
/// Absent and null fields stay at their defaults; cell_key, method and status must be there, series
/// must have equal lengths. @throws Error(Fault::input) naming origin and key.
[[nodiscard]] PassRecord pass_record_from_json(const Json& json, const std::string& origin);

}  // namespace poros
