// SPDX-License-Identifier: Apache-2.0
#include "plan/memory_plan.hpp"

#include <algorithm>
#include <limits>
#include <map>

#include "base/error.hpp"
#include "plan/layer_roles.hpp"
#include "plan/step_buffers.hpp"

namespace poros {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::int64_t kFlatAlignment = 64;  // elements: 256 bytes of fp32

template <typename T>
T round_up(T value, T multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

void plan_blocks(MemoryPlan& memory, const BaseStore& base) {
  const std::int64_t layers = base.architecture().layer_count();
  for (std::int64_t first = 0; first < layers; first += memory.settings.block_size) {
    BlockPlan block;
    block.first_layer = first;
    block.layers = std::min(memory.settings.block_size, layers - first);
    for (std::int64_t layer = first; layer < first + block.layers; ++layer) {
      block.layer_offsets.push_back(block.bytes);
      block.bytes += round_up<std::uint64_t>(base.layout(layer).bytes, 256);
    }
    memory.slot_bytes = std::max(memory.slot_bytes, block.bytes);
    memory.blocks.push_back(std::move(block));
  }
}

void plan_adapters(MemoryPlan& memory, std::int64_t layers,
                   const std::vector<LoraSiteGroup>& groups, const std::vector<LoraPlace>& places) {
  memory.adapters.resize(places.size());
  memory.layer_adapters.resize(static_cast<std::size_t>(layers));
  std::int64_t offset = 0;
  for (const LoraSiteGroup& group : groups) {
    AdapterRange& range = memory.layer_adapters[static_cast<std::size_t>(group.layer)];
    if (range.end == 0) range.begin = offset;
    for (const std::int64_t index : group.places) {
      const LoraPlace& place = places[static_cast<std::size_t>(index)];
      AdapterSlice& slice = memory.adapters[static_cast<std::size_t>(index)];
      slice.place = index;
      slice.a_offset = offset;
      offset += place.rank * place.in;
      memory.parameters += place.rank * (place.in + place.out);
    }
    offset = round_up(offset, kFlatAlignment);
    for (const std::int64_t index : group.places) {
      const LoraPlace& place = places[static_cast<std::size_t>(index)];
      memory.adapters[static_cast<std::size_t>(index)].b_offset = offset;
      offset = round_up(offset + place.rank * place.out, kFlatAlignment);
    }
    range.end = offset;
  }
  memory.flat_elements = offset;
}

std::uint64_t bytes_of(const EndTensor& tensor) {
  return static_cast<std::uint64_t>(tensor.rows * tensor.cols) * bytes_per_element(tensor.storage);
}

/// A GPU reads the embedding's rows from page-locked host memory, and the head through a ring.
void add_ends(std::vector<StepBuffer>& buffers, const BaseStore& base, const NumericalPlan& plan) {
  const EndTensor embedding = base.embedding(), head = base.head();
  const bool tied = base.architecture().tied_embeddings;
  buffers.push_back({"ends.host", BufferPhase::always,
                     bytes_of(embedding) + (tied ? 0 : bytes_of(head)), MemoryPlace::pinned_host});
  buffers.push_back({"head.ring", BufferPhase::always,
                     static_cast<std::uint64_t>(kHeadRing * plan.vocabulary_chunk * head.cols) *
                         bytes_per_element(head.storage),
                     MemoryPlace::device});
}

/// Lays device buffers into the arena: those of the layers and of the head over the same memory,
/// and on the CPU behind the layers' what comes and goes within a layer.
void place_buffers(MemoryPlan& memory, const std::vector<StepBuffer>& buffers, bool cuda) {
  const auto place = [&](BufferPhase phase, std::uint64_t begin) {
    std::uint64_t end = begin;
    for (const StepBuffer& buffer : buffers) {
      if (buffer.place != MemoryPlace::device || buffer.phase != phase) continue;
      const bool borrowed = phase == BufferPhase::mlp || phase == BufferPhase::attention_gradient ||
                            phase == BufferPhase::logits;
      memory.buffers.push_back({buffer.name, buffer.place, buffer.bytes, end, borrowed});
      end += round_up<std::uint64_t>(buffer.bytes, 256);
    }
    return end;
  };
  memory.pinned_bytes = memory.host_bytes = 0;
  for (const StepBuffer& buffer : buffers) {
    if (buffer.place == MemoryPlace::device) continue;
    memory.buffers.push_back({buffer.name, buffer.place, buffer.bytes, 0});
    (buffer.place == MemoryPlace::host ? memory.host_bytes : memory.pinned_bytes) += buffer.bytes;
  }
  const std::uint64_t common = place(BufferPhase::always, 0);
  const std::uint64_t layer = place(BufferPhase::layer, common);
  const std::uint64_t head = place(BufferPhase::head, common);
  memory.borrowed_bytes[kBorrowedMlp] = place(BufferPhase::mlp, 0);
  memory.borrowed_bytes[kBorrowedAttentionGradient] = place(BufferPhase::attention_gradient, 0);
  memory.borrowed_bytes[kBorrowedLogits] = place(BufferPhase::logits, 0);
  memory.borrowed_offset = std::max(layer, head);
  memory.arena_bytes =
      memory.borrowed_offset +
      (cuda ? 0 : *std::max_element(memory.borrowed_bytes.begin(), memory.borrowed_bytes.end()));
}

/// What is taken from LibTorch's allocator while a layer runs, at most.
std::uint64_t beside_arena(const MemoryPlan& memory, const FlashTemporaries& flash) {
  return std::max({memory.borrowed_bytes[kBorrowedMlp],
                   memory.borrowed_bytes[kBorrowedAttentionGradient] + flash.backward,
                   memory.borrowed_bytes[kBorrowedLogits], flash.forward});
}

/// Which blocks stay in the arena: spread evenly, so that the copies of the others find compute to
/// hide behind.
void choose_resident(MemoryPlan& memory, std::int64_t count) {
  const auto blocks = static_cast<std::int64_t>(memory.blocks.size());
  for (std::int64_t block = 0; block < blocks; ++block) {
    memory.blocks[static_cast<std::size_t>(block)].resident =
        (block + 1) * count / blocks > block * count / blocks;
  }
}

std::uint64_t resident_bytes(const MemoryPlan& memory) {
  std::uint64_t bytes = 0;
  for (const BlockPlan& block : memory.blocks) bytes += block.resident ? block.bytes : 0;
  return bytes;
}

/// Completes the plan for a number of resident blocks.
void lay_out(MemoryPlan& memory, std::vector<StepBuffer> buffers, std::int64_t resident, bool cuda,
             const FlashTemporaries& flash) {
  using enum MemoryPlace;
  const auto blocks = static_cast<std::int64_t>(memory.blocks.size());
  choose_resident(memory, resident);
  const std::int64_t streamed = blocks - resident;
  memory.slots = streamed == 0 ? 0 : std::min(memory.settings.slots, streamed);
  std::uint64_t waiting = 0;
  for (const BlockPlan& block : memory.blocks) waiting += block.resident ? 0 : block.bytes;
  memory.buffers.clear();
  std::vector<StepBuffer> base = {
      {"base.blocks", BufferPhase::always, resident_bytes(memory), device},
      {"base.slots", BufferPhase::always,
       memory.slot_bytes * static_cast<std::uint64_t>(memory.slots), device},
      {"base.host", BufferPhase::always, waiting, cuda ? pinned_host : host}};
  std::erase_if(base, [](const StepBuffer& buffer) { return buffer.bytes == 0; });
  buffers.insert(buffers.begin(), base.begin(), base.end());
  place_buffers(memory, buffers, cuda);
  memory.framework_bytes = cuda ? beside_arena(memory, flash) : 0;
}

}  // namespace

const char* name_of(ResidencyKind kind) {
  switch (kind) {
    case ResidencyKind::resident:
      return "resident";
    case ResidencyKind::streamed:
      return "streamed";
    case ResidencyKind::partial:
      return "partial";
  }
  return "?";
}

const char* name_of(MemoryPlace place) {
  switch (place) {
    case MemoryPlace::device:
      return "device";
    case MemoryPlace::pinned_host:
      return "pinned_host";
    case MemoryPlace::host:
      return "host";
  }
  return "?";
}

ResidencySettings residency_settings(const std::string& method, const PorosSpec& poros) {
  ResidencySettings settings;
  if (method != "resident" && method != "poros") {
    fail(Fault::input, "method \"{}\" is not one that this trainer runs (poros, resident)", method);
  }
  const bool streamed = method == "poros";
  settings.block_size = poros.block_size;
  settings.prefetch = poros.enable_prefetch;
  settings.kind = !streamed                          ? ResidencyKind::resident
                  : poros.vram_budget_mb.has_value() ? ResidencyKind::partial
                                                     : ResidencyKind::streamed;
  settings.budget_mb = poros.vram_budget_mb.value_or(0);
  settings.inputs_on_device =
      poros.layer_inputs == "auto" ? !streamed : poros.layer_inputs == "device";
  return settings;
}

const PlannedBuffer& MemoryPlan::find(const std::string& name) const {
  const auto found = std::find_if(buffers.begin(), buffers.end(),
                                  [&](const PlannedBuffer& buffer) { return buffer.name == name; });
  if (found == buffers.end()) fail(Fault::run, "the memory plan has no buffer \"{}\"", name);
  return *found;
}

MemoryPlan make_memory_plan(const BaseStore& base, const NumericalPlan& plan,
                            const std::vector<LoraPlace>& places,
                            const ResidencySettings& settings) {
  if (settings.block_size < 1) {
    fail(Fault::input, "poros.block_size: {} is not at least 1", settings.block_size);
  }
  if (settings.slots < 3) fail(Fault::input, "slots: {} is not at least 3", settings.slots);
  const Architecture& architecture = base.architecture();
  const std::vector<LoraSiteGroup> groups = lora_site_groups(architecture, places);
  MemoryPlan memory;
  memory.settings = settings;
  plan_blocks(memory, base);
  plan_adapters(memory, architecture.layer_count(), groups, places);

  std::vector<StepBuffer> buffers =
      step_buffers(architecture, plan, groups, settings.inputs_on_device);
  const auto flat = static_cast<std::uint64_t>(memory.flat_elements);
  for (const char* name :
       {"adapter.master", "adapter.gradient", "adapter.exp_avg", "adapter.exp_avg_sq"}) {
    if (flat > 0) buffers.push_back({name, BufferPhase::always, 4 * flat, MemoryPlace::device});
  }
  if (flat > 0 && plan.compute == ComputeType::bf16) {
    // One layer's at a time.
    std::int64_t most = 0;
    for (const AdapterRange& range : memory.layer_adapters) {
      most = std::max(most, range.end - range.begin);
    }
    buffers.push_back({"adapter.compute", BufferPhase::layer, 2 * static_cast<std::uint64_t>(most),
                       MemoryPlace::device});
    buffers.push_back({"adapter.turned", BufferPhase::always,
                       3 * sizeof(std::int64_t) * places.size(), MemoryPlace::device});
  }

  const auto blocks = static_cast<std::int64_t>(memory.blocks.size());
  const bool cuda = plan.device.cuda;
  if (cuda) add_ends(buffers, base, plan);
  const FlashTemporaries flash = flash_temporaries(architecture, plan);
  if (settings.kind != ResidencyKind::partial) {
    lay_out(memory, buffers, settings.kind == ResidencyKind::resident ? blocks : 0, cuda, flash);
    return memory;
  }
  const std::uint64_t budget = static_cast<std::uint64_t>(settings.budget_mb) * kMiB;
  // More resident blocks can free slots, so sizes need not grow evenly (few large blocks: all of
  // them can be less than the slots): take the largest number that fits.
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (std::int64_t resident = blocks; resident >= 0; --resident) {
    lay_out(memory, buffers, resident, cuda, flash);
    if (memory.device_bytes() <= budget) return memory;
    least = std::min(least, memory.device_bytes());
  }
  fail(Fault::input, "poros.vram_budget_mb: {} is too little: a step takes at least {} MiB",
       settings.budget_mb, (least + kMiB - 1) / kMiB);
}

Json to_json(const MemoryPlan& plan) {
  Json buffers = Json::array();
  for (const PlannedBuffer& buffer : plan.buffers) {
    buffers.push_back({{"name", buffer.name},
                       {"place", name_of(buffer.place)},
                       {"bytes", buffer.bytes},
                       {"offset", buffer.offset}});
  }
  std::int64_t resident = 0;
  for (const BlockPlan& block : plan.blocks) resident += block.resident ? 1 : 0;
  return {{"residency", name_of(plan.settings.kind)},
          {"block_size", plan.settings.block_size},
          {"blocks", plan.blocks.size()},
          {"resident_blocks", resident},
          {"slots", plan.slots},
          {"slot_bytes", plan.slot_bytes},
          {"prefetch", plan.settings.prefetch},
          {"layer_inputs", plan.settings.inputs_on_device ? "device" : "host"},
          {"parameters", plan.parameters},
          {"arena_bytes", plan.arena_bytes},
          {"framework_bytes", plan.framework_bytes},
          {"pinned_bytes", plan.pinned_bytes},
          {"host_bytes", plan.host_bytes},
          {"buffers", buffers}};
}

}  // namespace poros
