// SPDX-License-Identifier: Apache-2.0
// Where blocks wait and how they reach the compute stream. The executor asks for one block after
// the other, in an order that it announces; residency decides no bit of a result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/device.hpp"
#include "model/base_store.hpp"
#include "plan/memory_plan.hpp"
#include "train/arena.hpp"
#include "train/executor.hpp"

namespace poros {

class Residency {
 public:
  virtual ~Residency() = default;

  /// Announces the order of visits that follow (a whole step: forward 0 .. n-1, backward n-1 .. 0,
  /// sweep after sweep). All visits announced before must have been released.
  virtual void begin(const std::vector<std::int64_t>& visits) = 0;

  /// Bytes of the next visit's block, ready for work that is queued on the compute stream from now
  /// on. One block at a time: release it before the next acquire.
  [[nodiscard]] virtual const std::byte* acquire() = 0;

  /// All work on the acquired block is queued: its slot may take another.
  virtual void release() = 0;

  /// Adds its counts to bytes_copied, block_copies and copy_stall_s.
  virtual void count(ExecutorCounters& counters) const = 0;
};

/// All blocks lie in the arena ("base.blocks"), read into it straight from the base.
[[nodiscard]] std::unique_ptr<Residency> make_resident(const BaseStore& base,
                                                       const MemoryPlan& plan, const Arena& arena,
                                                       const Stream& stream);

/// Blocks that the plan calls resident lie in the arena, the others wait in a host slab and are
/// copied into slots: by a thread of its own that runs ahead of the compute, or with prefetch off
/// when they are asked for.
[[nodiscard]] std::unique_ptr<Residency> make_streamed(const BaseStore& base,
                                                       const MemoryPlan& plan, const Arena& arena,
                                                       const ExecutorDebug& debug);

/// The same on a GPU: copies on a stream of their own, events both ways.
[[nodiscard]] std::unique_ptr<Residency> make_streamed_cuda(const BaseStore& base,
                                                            const MemoryPlan& plan,
                                                            const Arena& arena,
                                                            const Stream& stream,
                                                            const ExecutorDebug& debug);

/// The one that plan and stream name.
[[nodiscard]] std::unique_ptr<Residency> make_residency(const BaseStore& base,
                                                        const MemoryPlan& plan, const Arena& arena,
                                                        const Stream& stream,
                                                        const ExecutorDebug& debug);

/// Reads a block's layers to `into`, each at its offset.
void read_block(const BaseStore& base, const BlockPlan& block, std::byte* into);

/// The blocks that lie in the arena, by index; null for the others. Filled from the base.
[[nodiscard]] std::vector<const std::byte*> load_resident_blocks(const BaseStore& base,
                                                                 const MemoryPlan& plan,
                                                                 const Arena& arena,
                                                                 const Stream& stream);

}  // namespace poros
