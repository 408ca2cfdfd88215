// SPDX-License-Identifier: Apache-2.0
// Every number, word and order of a report, computed in one place from a campaign's records. The
// HTML and the Markdown report only lay it out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "analysis/statistics.hpp"
#include "receipts/campaign_store.hpp"

namespace poros {

/// How a cell ended, in the order in which counts are printed.
enum class Outcome { ok, flagged, oom, error, skipped, pending };
inline constexpr std::size_t kOutcomes = 6;
/// "ok", "flagged", "out of memory", "error", "skipped", "not run"
[[nodiscard]] const char* word(Outcome outcome);

/// A per-step series of an arm for a plot, from its first pass that has one.
struct Curve {
  std::vector<double> values;  // step 1, 2, ...
  std::int64_t pass = 0;
  std::string record;
};

struct Parity {
  std::string reference;  // the method that the arm was compared with
  std::optional<bool> bitwise_exact;
  std::optional<double> loss_max_diff, weight_max_diff;
  std::optional<std::int64_t> steps;
  std::string record;
};

struct Arm {
  std::string method, record;  // record: path of the cell's file; empty for a cell not run
  Outcome outcome = Outcome::pending;
  std::string words;  // "ok", "suspect, capped", "out of memory", "error: timeout"
  std::string reason, message;
  std::vector<std::string> flags;

  std::optional<double> memory_mb;  // peak [2^20 bytes]: allocator, on a CPU the host's RSS
  bool memory_is_host = false;
  std::optional<double> memory_share;                         // of the card
  std::optional<double> s_per_step, s_low, s_high, s_stddev;  // median, least, most over passes [s]
  std::vector<double> pass_times;                             // a pass's median [s]
  std::optional<double> tokens_per_s, load_s, host_rss_mb, pinned_mb;
  std::int64_t passes_ok = 0, passes_expected = 0;

  // Against the group's reference arm; only where neither is flagged.
  std::optional<double> memory_ratio, time_ratio;
  std::optional<Interval> time_ratio_interval;

  std::optional<double> first_loss, mean_first10, mean_last10;
  std::optional<std::int64_t> trainable_params;
  std::string token_sha256, adapter_sha256, weights, settings;
  std::string variant;  // hash of what the spec asks of the cell, paths and pass count aside
  std::optional<Parity> parity;
  Curve loss, step_time, memory;
};

/// The arms that differ only in method, on one device.
struct Group {
  std::string id;   // anchor in the page
  std::string key;  // group key of the records
  std::string model, model_id, precision, hardware;
  bool cpu = false;
  std::optional<double> card_mb;  // the device's memory [2^20 bytes]
  std::string reference;          // method that ratios refer to; empty: none
  std::int64_t warmup_steps = 0;
  std::vector<Arm> arms;
  /// "Qwen2.5-32B, nf4, NVIDIA A100"
  [[nodiscard]] std::string title() const;
};

struct Counts {
  std::size_t expected = 0;
  std::size_t of[kOutcomes] = {};
  [[nodiscard]] std::size_t operator[](Outcome outcome) const {
    return of[static_cast<std::size_t>(outcome)];
  }
  /// "20 cells expected: 14 ok, 1 flagged, 5 out of memory"
  [[nodiscard]] std::string text() const;
};

struct NameValue {
  std::string name, value;
};

/// Cells that ran in one environment, or with the same software.
struct Environment {
  std::string title;
  std::size_t cells = 0;
  std::vector<NameValue> facts;
  std::string record;
};

/// A method's ratios over all groups where they could be formed.
struct MethodSummary {
  std::string method, reference;
  std::size_t groups = 0, compared = 0, excluded = 0;  // excluded: run, but flagged on either side
  std::optional<double> memory_ratio, memory_low, memory_high;  // median, least, most
  std::optional<double> time_ratio, time_low, time_high;
};

struct ReportModel {
  std::string title, protocol, device, spec_sha256, receipts_sha256, period;
  bool original_format = false;
  Counts counts;
  std::vector<std::string> summary;  // sentences
  std::vector<std::string> methods;  // columns of the matrix
  std::vector<Group> groups;
  std::vector<MethodSummary> ratios;
  std::vector<std::string> held_identical, not_identical;
  std::vector<NameValue> settings;
  std::vector<Environment> environments, software;
  std::vector<std::string> unnamed_pending;  // cells not run of which only the key is known
  std::vector<std::string> problems;
};

[[nodiscard]] ReportModel make_report_model(const Campaign& campaign);

}  // namespace poros
