// SPDX-License-Identifier: Apache-2.0
#include "base/error.hpp"
#include "train/residency.hpp"

namespace poros {
namespace {

class Resident final : public Residency {
 public:
  Resident(const BaseStore& base, const MemoryPlan& plan, const Arena& arena, const Stream& stream)
      : blocks_(load_resident_blocks(base, plan, arena, stream)) {}

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

namespace {

/// Two page-locked buffers through which blocks reach a GPU: one is read into while the other is
/// copied.
class BlockLoader {
 public:
  BlockLoader(std::uint64_t bytes, const Stream& stream)
      : stream_(stream),
        bytes_((bytes + 4095) / 4096 * 4096),
        memory_(2 * bytes_, "loading the base"),
        pin_(memory_.data(), memory_.bytes(), stream) {
    for (int side = 0; side < 2; ++side) sent_.emplace_back(stream);
  }
  ~BlockLoader() {
    for (const Event& event : sent_) event.wait_on_host();
  }
  BlockLoader(const BlockLoader&) = delete;
  BlockLoader& operator=(const BlockLoader&) = delete;

  void load(const BaseStore& base, const BlockPlan& block, std::byte* into) {
    const std::uint64_t at = side_ * bytes_;
    sent_[side_].wait_on_host();
    read_block(base, block, memory_.data() + at);
    copy_pinned(stream_, into, memory_.data() + at, block.bytes, at);
    sent_[side_].record(stream_);
    side_ = 1 - side_;
  }

 private:
  Stream stream_;
  std::uint64_t bytes_;
  HostSlab memory_;
  PinnedRange pin_;  // where it is refused the copies are slower, that is all
  std::vector<Event> sent_;
  std::size_t side_ = 0;
};

}  // namespace

std::vector<const std::byte*> load_resident_blocks(const BaseStore& base, const MemoryPlan& plan,
                                                   const Arena& arena, const Stream& stream) {
  std::byte* at = arena.find("base.blocks");
  std::vector<const std::byte*> blocks(plan.blocks.size(), nullptr);
  std::unique_ptr<BlockLoader> loader;
  for (std::size_t index = 0; index < plan.blocks.size(); ++index) {
    const BlockPlan& block = plan.blocks[index];
    if (!block.resident) continue;
    if (stream.device == DeviceKind::cpu) {
      read_block(base, block, at);
    } else {
      if (loader == nullptr) loader = std::make_unique<BlockLoader>(plan.slot_bytes, stream);
      loader->load(base, block, at);
    }
    blocks[index] = at;
    at += block.bytes;
  }
  return blocks;
}

std::unique_ptr<Residency> make_resident(const BaseStore& base, const MemoryPlan& plan,
                                         const Arena& arena, const Stream& stream) {
  return std::make_unique<Resident>(base, plan, arena, stream);
}

std::unique_ptr<Residency> make_residency(const BaseStore& base, const MemoryPlan& plan,
                                          const Arena& arena, const Stream& stream,
                                          const ExecutorDebug& debug) {
  if (plan.slots == 0) return make_resident(base, plan, arena, stream);
  return stream.device == DeviceKind::cpu ? make_streamed(base, plan, arena, debug)
                                          : make_streamed_cuda(base, plan, arena, stream, debug);
}

}  // namespace poros
