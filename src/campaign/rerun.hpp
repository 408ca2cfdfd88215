// SPDX-License-Identifier: Apache-2.0
// bench rerun: a cell measured again from its record alone, old and new figures side by side.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "campaign/folder.hpp"

namespace poros {

struct RerunOptions {
  std::filesystem::path dir;                         // the campaign; nothing in it is changed
  std::string key;                                   // as of print_cell
  std::optional<std::filesystem::path> output_file;  // the new RunArtifact
  std::optional<std::filesystem::path> into;  // keeps artifact, pass records and logs; must not be
                                              // there yet, or be empty
  std::filesystem::path model_dir;  // the checkpoint, where it no longer lies where the record says
  std::optional<std::int64_t> n_passes;  // instead of as many as the record has
  bool allow_hardware_mismatch = false;
  bool json = false;

  std::filesystem::path cell_program;  // poros-cell; empty: beside this program
  std::filesystem::path supervisor_program = "/proc/self/exe";
  int argc = 0;
  char** argv = nullptr;
};

/// Runs the cell as its RunArtifact describes it. Token file and initial adapter are those of the
/// record's hashes: the campaign's files where they are there unaltered, else made anew and
/// checked. CPU threads are those of the record. Takes over SIGINT, SIGTERM and SIGUSR1 while it
/// runs.
/// @returns 0; 1 where the cell ended otherwise than the record says or did other work; 75 stopped
/// @throws Error(Fault::input): no such record, a record of another version of the spec, or inputs
///         that can't be made again with the record's hashes
int rerun_cell(const RerunOptions& options);

/// The cell key that `text` means: a key, its beginning of 4 or more characters, or the name of its
/// artifact file. @throws Error(Fault::input) when nothing or several match
[[nodiscard]] std::string find_cell_key(const CampaignFolder& folder, const std::string& text);

}  // namespace poros
