// SPDX-License-Identifier: Apache-2.0
// The buffers that a training step works in, base and adapters aside. The executor asks the arena
// for them by these names; nothing else is allocated.
#pragma once

#include <string>
#include <vector>

#include "model/adapter.hpp"
#include "model/architecture.hpp"
#include "plan/layer_roles.hpp"
#include "plan/memory_plan.hpp"
#include "plan/numerical_plan.hpp"

namespace poros {

/// When a buffer's content is needed. Layers and the loss head never run at the same time, so their
/// buffers share memory; and with the head's logits, what a layer's MLP works on and the gradients
/// inside attention do.
enum class BufferPhase { always, layer, head, mlp, attention_gradient, logits };

/// Chunks of the head that a GPU holds at a time ("head.ring").
inline constexpr std::int64_t kHeadRing = 4;

struct StepBuffer {
  std::string name;
  BufferPhase phase = BufferPhase::always;
  std::uint64_t bytes = 0;
  MemoryPlace place = MemoryPlace::device;
};

/// Largest LoRA ranks that share an input site, over all layers: [Site] for dense linears, and for
/// the experts' sites.
struct SiteRanks {
  std::int64_t dense[4] = {0, 0, 0, 0};
  std::int64_t expert_in = 0, expert_down = 0;
};
[[nodiscard]] SiteRanks site_ranks(const std::vector<LoraSiteGroup>& groups);

/// Keys that one tile of the blocked attention can see at most.
[[nodiscard]] std::int64_t attention_key_capacity(const NumericalPlan& plan);

/// Rows of the tables of rotary positions; twice as many where short and long factors differ.
[[nodiscard]] std::int64_t rotary_table_rows(const NumericalPlan& plan, const RopeTable& table);

/// What LibTorch's flash attention takes from the caching allocator beside the arena, at most, for
/// sweeps of at most document_slots documents [bytes]; 0 where no layer uses it.
struct FlashTemporaries {
  std::uint64_t forward = 0, backward = 0;
};
[[nodiscard]] FlashTemporaries flash_temporaries(const Architecture& architecture,
                                                 const NumericalPlan& plan);

[[nodiscard]] std::vector<StepBuffer> step_buffers(const Architecture& architecture,
                                                   const NumericalPlan& plan,
                                                   const std::vector<LoraSiteGroup>& groups,
                                                   bool inputs_on_device);

}  // namespace poros
