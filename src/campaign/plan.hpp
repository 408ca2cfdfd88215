// SPDX-License-Identifier: Apache-2.0
// What a campaign is to do: cells, comparison groups, the order of passes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "spec/cell_spec.hpp"
#include "spec/spec.hpp"

namespace poros {

struct PlannedCell {
  CellSpec spec;
  std::string key, group;
  std::string file;   // name of its RunArtifact
  std::string model;  // as people call it
  /// "poros kjv-qwen2 nf4", "peft kjv-qwen2 nf4 (best shape)"
  [[nodiscard]] std::string label() const {
    return spec.method + " " + model + " " + spec.precision +
           (spec.variant.empty() ? "" : " (" + spec.variant + ")") +
           (spec.peer.best_shape ? " (best shape)" : "");
  }
};

/// The cells that differ only in method: they run on one device, their passes interleaved.
struct ComparisonGroup {
  std::string key;
  std::vector<std::size_t> cells;  // indices into CampaignPlan::cells, in the spec's order
};

struct CampaignPlan {
  BenchmarkSpec spec;
  Json spec_json;  // every default written out
  std::string spec_sha256;
  std::vector<PlannedCell> cells;
  std::vector<ComparisonGroup> groups;

  /// The group's cell with that method, or nullptr.
  [[nodiscard]] const PlannedCell* find(const ComparisonGroup& group,
                                        const std::string& method) const;
};

/// @throws Error(Fault::input) when two cells of the spec are the same
[[nodiscard]] CampaignPlan make_plan(BenchmarkSpec spec);

struct PassSlot {
  std::size_t cell = 0;
  std::int64_t pass = 0;
};

/// Pass 0 of each cell, pass 1 of each, ...: drift of clocks or temperature meets every arm alike.
[[nodiscard]] std::vector<PassSlot> interleaved_passes(const ComparisonGroup& group,
                                                       std::int64_t n_passes);

}  // namespace poros
