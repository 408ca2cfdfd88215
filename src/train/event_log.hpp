// SPDX-License-Identifier: Apache-2.0
// {output_dir}/events.jsonl of a training: what happened, a line each, appended over all its runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/files.hpp"
#include "base/json.hpp"

namespace poros {

/// One line: {"event_type", "timestamp" (Unix time [s]), "step", "block_id": null, "run_id",
/// "data"}. Types: setup, step, eval, checkpoint, oom, error, teardown. `poros schema events` has
/// the fields of each.
class EventLog {
 public:
  /// Opens the file for appending; a line that a killed run left unfinished is ended first.
  /// @throws Error(Fault::io)
  EventLog(std::filesystem::path path, std::string run_id);

  /// Appends a line. A file that can't be written (disk full) doesn't end the training: the first
  /// failure is told on stderr. Numbers that are not finite become null.
  void write(const char* type, std::int64_t step, Json data);

 private:
  std::filesystem::path path_;
  std::string run_id_;
  UniqueFd fd_;
  bool told_ = false;
};

}  // namespace poros
