// SPDX-License-Identifier: Apache-2.0
// A campaign folder (or its campaign.h5) as one value: what reports, tables and comparisons read.
//
// Read from a folder:
//   spec.json       {"v": 1, "spec_id", "spec_sha256", "spec": {...}, "cells": ...}, where cells is
//                   {key: {"file", "index", "group_key", "method", "model", "precision"}} (or a
//                   list of such objects, each with its "key")
//   results.jsonl   receipts; the last one of kind cell for a key counts. Its artifact is a
//                   RunArtifact whose `passes` name the PassRecords
//                   (a results.jsonl of the Python original, one RunArtifact a line, is read too)
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "receipts/pass_record.hpp"
#include "receipts/receipt.hpp"
#include "receipts/run_artifact.hpp"

namespace poros {

inline constexpr const char* kSpecFile = "spec.json";
inline constexpr const char* kStoreFile = "campaign.h5";

struct CampaignPass {
  PassRecord record;
  std::string path;    // artifacts/<key>/<pass>.<attempt>.json
  std::string sha256;  // of that file's bytes
};

struct CampaignCell {
  RunArtifact artifact;
  std::string path, sha256;  // of the RunArtifact's file
  std::int64_t seq = -1;     // of the receipt in results.jsonl
  std::vector<CampaignPass> passes;
};

struct CampaignParity {
  std::string group_key;
  std::int64_t seq = -1;
  Json fields = Json::object();  // of the receipt
  Json record = Json::object();  // of the artifact
  std::string path, sha256;
};

struct Campaign {
  Json spec = Json::object();       // spec.json
  std::vector<Receipt> receipts;    // in order of seq
  std::vector<CampaignCell> cells;  // in spec.json's order, then by first receipt
  std::vector<CampaignParity> parity;
  std::vector<std::string> pending;   // keys that spec.json expects and that have no cell receipt
  std::vector<std::string> problems;  // records missing or altered, in words
  std::string receipts_sha256;        // of the accepted lines
  bool original_format = false;       // written by the Python original
};

/// Reads a campaign folder, or a campaign.h5 alone: both give the same value.
/// @throws Error(Fault::input) when it is neither, or is damaged, naming the place.
[[nodiscard]] Campaign load_campaign(const std::filesystem::path& dir_or_h5);

/// Reads a folder's journal and artifacts (never its campaign.h5). With `passes` false the pass
/// records are left out, for a caller that loads them cell by cell.
[[nodiscard]] Campaign load_campaign_folder(const std::filesystem::path& dir, bool passes = true);

/// Reads the pass records that a cell's artifact names. A record that is missing or does not match
/// its sha256 is left out and noted in `problems`.
[[nodiscard]] std::vector<CampaignPass> load_passes(const std::filesystem::path& dir,
                                                    const CampaignCell& cell,
                                                    std::vector<std::string>& problems);

}  // namespace poros
