// SPDX-License-Identifier: Apache-2.0
// The memory plan: every buffer of a training step by name, with its bytes and its place. What it
// says is what the arena takes; `poros check` prints the same figures.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "model/adapter.hpp"
#include "model/base_store.hpp"
#include "plan/numerical_plan.hpp"

namespace poros {

/// Where blocks wait: all in the arena, all in host memory, or as many in the arena as a budget
/// holds.
enum class ResidencyKind { resident, streamed, partial };

[[nodiscard]] const char* name_of(ResidencyKind kind);

enum class MemoryPlace { device, pinned_host, host };

[[nodiscard]] const char* name_of(MemoryPlace place);

struct PlannedBuffer {
  std::string name;
  MemoryPlace place = MemoryPlace::device;
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;  // in the arena, or in what is borrowed; device buffers only
  bool borrowed = false;     // there for a part of each layer only (MemoryPlan::borrowed_bytes)
};

/// How an arm keeps its base; decides no bit of the result.
struct ResidencySettings {
  ResidencyKind kind = ResidencyKind::resident;
  std::int64_t block_size = 1;   // [decoder layers]
  std::int64_t slots = 3;        // streamed blocks that the arena can hold; at least 3
  bool prefetch = true;          // false: a block is copied when it is asked for
  bool inputs_on_device = true;  // where the layers' inputs of a sweep wait
  std::int64_t budget_mb = 0;    // [2^20 bytes] partial: limit of the arena
};

/// From a spec: resident -> all in the arena; poros -> streamed, or partial with vram_budget_mb.
/// @param method "resident" or "poros"
[[nodiscard]] ResidencySettings residency_settings(const std::string& method,
                                                   const PorosSpec& poros);

/// A run of consecutive decoder layers, the granule of transfer.
struct BlockPlan {
  std::int64_t first_layer = 0, layers = 0;
  std::uint64_t bytes = 0;
  std::vector<std::uint64_t> layer_offsets;  // of each layer's slab in the block
  bool resident = false;
};

/// A layer's adapters in the flat parameter buffers [elements].
struct AdapterRange {
  std::int64_t begin = 0, end = 0;
};

/// One adapted linear in the flat parameter buffers (master, gradient, moments).
struct AdapterSlice {
  std::int64_t place = 0;     // index into Adapter::places
  std::int64_t a_offset = 0;  // [elements] of A [rank, in]
  std::int64_t b_offset = 0;  // [elements] of B [out, rank]
};

/// Memory that is there for a part of the work only; one of them at a time.
enum Borrowed : std::size_t {
  kBorrowedMlp,
  kBorrowedAttentionGradient,
  kBorrowedLogits,
  kBorrowedKinds
};

struct MemoryPlan {
  ResidencySettings settings;
  std::vector<BlockPlan> blocks;
  std::uint64_t slot_bytes = 0;
  std::int64_t slots = 0;              // 0 when all blocks are resident
  std::vector<AdapterSlice> adapters;  // one a place, in the order of Adapter::places
  std::vector<AdapterRange> layer_adapters;
  std::int64_t parameters = 0;     // trainable, without padding
  std::int64_t flat_elements = 0;  // of each flat buffer, padding included (zeros)
  std::vector<PlannedBuffer> buffers;
  std::uint64_t arena_bytes = 0;  // device memory, all of it one allocation
  /// Device memory that comes and goes beside the arena: what the MLP works on, or in its place the
  /// gradients inside attention and the temporaries of LibTorch's attention, whichever is more. On
  /// the CPU it lies in the arena and this is 0.
  std::uint64_t framework_bytes = 0;
  std::array<std::uint64_t, kBorrowedKinds> borrowed_bytes = {};  // by Borrowed
  std::uint64_t borrowed_offset = 0;  // CPU: where in the arena they lie
  std::uint64_t pinned_bytes = 0;
  std::uint64_t host_bytes = 0;  // pageable

  [[nodiscard]] std::uint64_t device_bytes() const { return arena_bytes + framework_bytes; }

  /// @throws Error(Fault::run) when the plan has no such buffer.
  [[nodiscard]] const PlannedBuffer& find(const std::string& name) const;
};

/// @param places  which linears are adapted (Adapter::places)
/// @throws Error(Fault::input) when a budget holds not even the slots, with the figures.
[[nodiscard]] MemoryPlan make_memory_plan(const BaseStore& base, const NumericalPlan& plan,
                                          const std::vector<LoraPlace>& places,
                                          const ResidencySettings& settings);

[[nodiscard]] Json to_json(const MemoryPlan& plan);

}  // namespace poros
