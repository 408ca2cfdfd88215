// SPDX-License-Identifier: Apache-2.0
// Tracing what a campaign shows to its raw records: receipts, artifacts, store, reports.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.hpp"

namespace poros {

struct Verification {
  std::string name;  // of the campaign folder
  std::string spec_sha256, receipts_sha256;
  std::size_t receipts = 0, artifacts = 0, passes = 0, cells = 0, pending = 0;
  bool store = false, html = false, markdown = false;  // was there, and was checked
  bool original_format = false;       // of the Python original: it has no checksums
  std::vector<std::string> problems;  // what is missing or altered; empty: all is traced
};

/// Checks each receipt (its checksum, its place in the sequence), each artifact that one names, the
/// spec hash of each cell, and that campaign.h5, report.html and report.md are what the records
/// give. Changes nothing. Damage is reported in `problems`.
/// @throws Error(Fault::input) when dir is no campaign folder
[[nodiscard]] Verification verify_campaign(const std::filesystem::path& dir);

/// Campaign folders directly below `parent`, by name.
[[nodiscard]] std::vector<std::filesystem::path> campaigns_below(
    const std::filesystem::path& parent);

/// INDEX.md: the campaigns that verify, and a digest (sha256) over their names and hashes.
[[nodiscard]] std::string validation_index(const std::vector<Verification>& verified);

[[nodiscard]] Json to_json(const Verification& verification);

}  // namespace poros
