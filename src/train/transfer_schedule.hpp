// SPDX-License-Identifier: Apache-2.0
// Which block is copied into which slot, and when that slot is free for it: worked out ahead for a
// whole step from the order in which blocks are visited. A pure function; the streamed residencies
// only carry it out.
#pragma once

#include <cstdint>
#include <vector>

namespace poros {

/// A copy of a block into a slot.
struct BlockCopy {
  std::int64_t block = 0;
  std::int64_t slot = 0;
  /// The visit whose release frees the slot; -1: it is free from the start.
  std::int64_t free_after = -1;
  /// The first visit that reads what was copied.
  std::int64_t needed_at = 0;
};

struct TransferSchedule {
  std::vector<BlockCopy> copies;            // in the order of needed_at
  std::vector<std::int64_t> slot_of_visit;  // -1: a resident block
  std::vector<std::int64_t> copy_of_visit;  // index of the copy that made it ready; -1: none
  std::vector<bool> content_ends;           // [visit] after it the slot's content is never read
  std::vector<std::int64_t> slots_at_end;   // block in each slot after the last visit; -1: none
};

/// Belady's rule on the known order: a copy goes to the slot whose block is needed last, and only
/// once that block is not needed before the copied one. So the block at which the order turns round
/// stays in its slot.
/// @param visits         blocks in the order of use
/// @param resident       [blocks] true: lies in the arena, needs no slot
/// @param slots_at_start block that each slot holds already; -1: none
[[nodiscard]] TransferSchedule make_transfer_schedule(
    const std::vector<std::int64_t>& visits, const std::vector<bool>& resident,
    const std::vector<std::int64_t>& slots_at_start);

}  // namespace poros
