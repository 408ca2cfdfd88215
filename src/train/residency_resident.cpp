// SPDX-License-Identifier: Apache-2.0
#include "base/error.hpp"
#include "train/residency.hpp"

namespace poros {
namespace {

class Resident final : public Residency {
 public:
  Resident(const BaseStore& base, const MemoryPlan& plan, const Arena& arena)
      : blocks_(load_resident_blocks(base, plan, arena)) {}

  void begin(const std::vector<std::int64_t>& visits) override {
    visits_ = visits;
    next_ = 0;
  }

  const std::byte* acquire() override {
    if (next_ >= visits_.size()) fail(Fault::run, "a block is asked for past the announced order");
    return blocks_[static_cast<std::size_t>(visits_[next_])];
  }

  void release() override { ++next_; }

  void count(ExecutorCounters&) const override {}

 private:
  std::vector<const std::byte*> blocks_;
  std::vector<std::int64_t> visits_;
  std::size_t next_ = 0;
};

}  // namespace

void read_block(const BaseStore& base, const BlockPlan& block, std::byte* into) {
  for (std::int64_t index = 0; index < block.layers; ++index) {
    base.read_layer(block.first_layer + index,
                    into + block.layer_offsets[static_cast<std::size_t>(index)]);
  }
}

std::vector<const std::byte*> load_resident_blocks(const BaseStore& base, const MemoryPlan& plan,
                                                   const Arena& arena) {
  std::byte* at = arena.find("base.blocks");
  std::vector<const std::byte*> blocks(plan.blocks.size(), nullptr);
  for (std::size_t index = 0; index < plan.blocks.size(); ++index) {
    if (!plan.blocks[index].resident) continue;
    read_block(base, plan.blocks[index], at);
    blocks[index] = at;
    at += plan.blocks[index].bytes;
  }
  return blocks;
}

std::unique_ptr<Residency> make_resident(const BaseStore& base, const MemoryPlan& plan,
                                         const Arena& arena) {
  return std::make_unique<Resident>(base, plan, arena);
}

std::unique_ptr<Residency> make_residency(const BaseStore& base, const MemoryPlan& plan,
                                          const Arena& arena, const ExecutorDebug& debug) {
  return plan.slots == 0 ? make_resident(base, plan, arena)
                         : make_streamed(base, plan, arena, debug);
}

}  // namespace poros
