// SPDX-License-Identifier: Apache-2.0
#include "train/transfer_schedule.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace poros {
namespace {

struct Slot {
  std::int64_t block = -1;
  std::int64_t last_visit = -1;  // last visit so far that read it
};

/// The first visit from `from` on that reads `block`; the number of visits when none does.
std::int64_t next_visit(const std::vector<std::int64_t>& visits, std::int64_t block,
                        std::int64_t from) {
  const auto found = std::find(visits.begin() + from, visits.end(), block);
  return found - visits.begin();
}

}  // namespace

TransferSchedule make_transfer_schedule(const std::vector<std::int64_t>& visits,
                                        const std::vector<bool>& resident,
                                        const std::vector<std::int64_t>& slots_at_start) {
  const auto count = static_cast<std::int64_t>(visits.size());
  TransferSchedule schedule;
  schedule.slot_of_visit.assign(visits.size(), -1);
  schedule.copy_of_visit.assign(visits.size(), -1);
  schedule.content_ends.assign(visits.size(), false);
  std::vector<Slot> slots;
  for (const std::int64_t block : slots_at_start) slots.push_back({block, -1});

  for (std::int64_t visit = 0; visit < count; ++visit) {
    const std::int64_t block = visits[static_cast<std::size_t>(visit)];
    if (resident[static_cast<std::size_t>(block)]) continue;
    auto slot = std::find_if(slots.begin(), slots.end(),
                             [&](const Slot& candidate) { return candidate.block == block; });
    if (slot == slots.end()) {
      if (slots.empty())
        fail(Fault::run, "block {} is to be streamed, but there are no slots", block);
      // The victim is needed last of all; an empty slot is never needed again.
      const auto needed = [&](const Slot& candidate) {
        return candidate.block < 0 ? count + 1 : next_visit(visits, candidate.block, visit);
      };
      slot = std::max_element(slots.begin(), slots.end(), [&](const Slot& a, const Slot& b) {
        const std::int64_t a_needed = needed(a), b_needed = needed(b);
        // Among equals the one that was free first.
        return a_needed != b_needed ? a_needed < b_needed : a.last_visit > b.last_visit;
      });
      if (slot->last_visit >= 0) {
        schedule.content_ends[static_cast<std::size_t>(slot->last_visit)] = true;
      }
      schedule.copies.push_back({block, slot - slots.begin(), slot->last_visit, visit});
      schedule.copy_of_visit[static_cast<std::size_t>(visit)] =
          static_cast<std::int64_t>(schedule.copies.size()) - 1;
      slot->block = block;
    }
    slot->last_visit = visit;
    schedule.slot_of_visit[static_cast<std::size_t>(visit)] = slot - slots.begin();
  }
  for (const Slot& slot : slots) schedule.slots_at_end.push_back(slot.block);
  return schedule;
}

}  // namespace poros
