// SPDX-License-Identifier: Apache-2.0
// A campaign: every cell of a spec, measured pass by pass in fresh processes, written down so that
// any process may be killed at any moment and the same command goes on. The command line calls the
// functions of this file and nothing else of this layer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json.hpp"

namespace poros {

struct CampaignOptions {
  std::filesystem::path spec_path;                  // the YAML
  std::optional<std::filesystem::path> output_dir;  // instead of reporting.output_dir
  std::optional<std::int64_t> n_passes;             // instead of training.n_passes
  std::optional<double> until_stable;  // more passes until their spread is at most this fraction
  std::int64_t max_passes = 10;        // with until_stable
  bool fresh = false;  // move an older run in the same folder aside to <dir>.<n> and begin anew
  bool retry = false;  // run cells that ended in oom or error again
  bool json = false;   // print one JSON object instead of the final table
  bool over_ranks = false;          // below a launcher: one campaign over all ranks (bench matrix)
  bool plain = false;               // plain lines even on a terminal
  double rank_silent_s = 60;        // a rank that is not heard of for so long ends the job
  bool exclusive_host = false;      // poros and accelerate_offload run alone on their host
  std::vector<std::string> only;    // see SelectionOptions
  std::string shard_name, shard;    // "a100", "0/4": this run's own journal, its part
  std::optional<double> max_hours;  // start no pass that would end later
  std::optional<std::int64_t> max_failures;  // end after that many failed cells
  bool allow_hardware_mismatch = false;      // record another GPU than the spec names
  bool allow_mixed_builds = false;  // go on although poros-cell or the runners have changed

  std::filesystem::path cell_program;  // poros-cell; empty: beside this program
  std::filesystem::path supervisor_program = "/proc/self/exe";  // knows kSuperviseCommand
  int argc = 0;  // the command line, for the record (redacted)
  char** argv = nullptr;

  /// Makes report.html and report.md in the campaign folder from its receipts (analysis layer).
  /// Called at the end of each run, finished or not. An Error is printed and does not undo the run.
  std::function<void(const std::filesystem::path& dir, bool html, bool markdown)> write_report;
};

/// Runs the campaign to its end, or goes on where an earlier run of the same command stopped.
/// Takes over SIGINT, SIGTERM and SIGUSR1 while it runs. Not to be called from several threads.
/// @returns 0 done (oom and skipped are results), 1 a cell ended in error or parity failed,
///          75 stopped on request or for want of time: the same command goes on
/// @throws Error: usage or input (exit 2): broken spec, changed spec, another driver holds the
///         campaign; io: disk full or read-only (everything finished is kept)
int run_campaign(const CampaignOptions& options);

/// What `bench status` knows, from files alone, during or after a run:
/// {campaign, spec_id, driver{state, host, pid, activity}, drivers[{shard, state, host, pid}],
///  counts{total, done, failed, skipped, running, left}, by_gpu{<type>: counts},
///  cells[{key, index, method, model, precision, gpu, state, status, reason, passes_ok, why}],
///  running[{key, method, model, precision, purpose, pass, n_passes, attempt, phase, step, steps,
///  loss, s_per_step, memory_mb, running_s, eta_s, age_s}], eta_s}.
[[nodiscard]] Json campaign_status(const std::filesystem::path& dir);

/// Prints campaign_status for people (or as JSON); with `watch` again every 2 s until the campaign
/// ends or SIGINT; with `why` also what keeps each cell that is not done. @returns 0
int print_status(const std::filesystem::path& dir, bool watch, bool json, bool why = false);

/// Prints one record: `key` is a cell key, an unambiguous beginning of one (4 or more characters)
/// or the name of an artifact file. @throws Error(Fault::input) when nothing or several match.
int print_cell(const std::filesystem::path& dir, const std::string& key, bool json);

/// Prints the log of a cell's last attempt, or of the given pass.
int print_log(const std::filesystem::path& dir, const std::string& key,
              std::optional<std::int64_t> pass = {});

}  // namespace poros
