// SPDX-License-Identifier: Apache-2.0
// What a cell will need, before it runs: memory from the planner, time from the work that the
// matrix unit and the links have to do. Estimates; a measured pass always counts more.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "spec/cell_spec.hpp"

namespace poros {

/// Every figure is an estimate. nullopt: the model's shapes are not at hand, or the arm is one of
/// which nothing is known.
struct CellPrediction {
  std::optional<std::int64_t> vram_bytes;  // allocator peak of a step
  std::optional<std::int64_t> host_bytes;  // pinned and other memory of the process on the host
  std::optional<double> s_per_step;
  std::optional<double> s_per_pass;  // load and all steps of one pass
  std::optional<bool> fits;          // vram_bytes in the card's memory (or vram_cap_mb)
  std::string why;                   // of a missing figure, or why it does not fit; else empty
};

/// Predicts one cell on the GPU type that it names. Reads config.json of a local model, or of a hub
/// model that is in the cache or among the shapes that this program knows. Never throws for an
/// unknown model.
[[nodiscard]] CellPrediction predict(const CellSpec& cell);

/// Of one GPU of a type, for all passes of its cells; nothing where a cell has no prediction.
[[nodiscard]] std::optional<double> predicted_hours(const std::vector<CellSpec>& cells,
                                                    std::int64_t n_passes,
                                                    const std::string& gpu_name);

}  // namespace poros
