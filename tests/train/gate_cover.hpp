// SPDX-License-Identifier: Apache-2.0
// The runs of the bitwise gate: a pairwise cover of what decides bits (dropout, accumulation,
// packing, sequence length) and of what must not (how the base is kept).
#pragma once

#include <array>
#include <cstddef>
#include <vector>

namespace poros {

enum GateFactor : std::size_t {
  kGateDropout,       // 0, 0.1
  kGateAccumulation,  // 1, 8
  kGateRows,          // padded, packed
  kGateSeqLen,        // short, long
  kGateResidency,     // streamed, partial, resident
  kGateBlockSize,     // 1, 2, 4, 8
  kGateSlots,         // 3, 4, all
  kGatePrefetch,      // on, off
  kGateInputs,        // on the host, on the device
  kGateFactors
};
inline constexpr std::array<int, kGateFactors> kGateLevels = {2, 2, 2, 2, 3, 4, 3, 2, 2};
/// Factors before this one are the numerical plan's.
inline constexpr std::size_t kGatePlanFactors = 4;

/// A level of each factor.
using GateRun = std::array<int, kGateFactors>;

/// Whether two levels that a run holds count as met. Slots and prefetch mean something only where
/// blocks are copied.
[[nodiscard]] bool gate_pair_counts(const GateRun& run, std::size_t first, std::size_t second);

/// Runs that hold each pair of levels of each two factors at least once. The greedy choice among
/// all combinations, in their order: the same on every machine.
[[nodiscard]] std::vector<GateRun> gate_cover();

/// The runs of the cover by their plan factors.
struct GatePlan {
  GateRun plan;  // the levels of the plan factors; others 0
  std::vector<GateRun> runs;
};
[[nodiscard]] std::vector<GatePlan> gate_plans();

}  // namespace poros
