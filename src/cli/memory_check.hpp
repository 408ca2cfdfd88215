// SPDX-License-Identifier: Apache-2.0
// The memory part of `poros check`: what the one planner (src/plan) says a training step takes, for
// each of our arms and for cards that are not here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/json.hpp"
#include "model/architecture.hpp"

namespace poros {

/// The settings that the memory depends on; the spec's defaults where nothing is said.
struct MemoryQuestion {
  std::string precision = "nf4", device = "cuda";
  std::int64_t seq_len = 512, batch_size = 1, accumulation = 8, rank = 16, block_size = 4;
  std::optional<std::int64_t> vram_budget_mb;  // [2^20 bytes] of the arm poros
};

/// {"precision", "seq_len", ..., "arms": [{"method", "device_bytes", "pinned_bytes", "host_bytes",
/// "trainable_params"}]} and for a GPU "seq_len_limit" (the longest rows tried) and "cards":
/// [{"name", "capacity_bytes", "arms": [{"method", "device_bytes", "fits", "largest_seq_len"}]}].
/// @throws Error(Fault::input) when a setting does not fit the model, or a budget is too little
[[nodiscard]] Json planned_memory(const Architecture& architecture, const MemoryQuestion& question);

[[nodiscard]] std::string memory_text(const Json& planned);

}  // namespace poros
