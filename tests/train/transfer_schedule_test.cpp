// SPDX-License-Identifier: Apache-2.0
#include "train/transfer_schedule.hpp"

#include <algorithm>

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace poros {
namespace {

std::vector<std::int64_t> zigzag(std::int64_t blocks, std::int64_t sweeps) {
  std::vector<std::int64_t> visits;
  for (std::int64_t sweep = 0; sweep < sweeps; ++sweep) {
    for (std::int64_t block = 0; block < blocks; ++block) visits.push_back(block);
    for (std::int64_t block = blocks - 1; block >= 0; --block) visits.push_back(block);
  }
  return visits;
}

/// Plays a schedule in the worst order that its conditions allow (each copy as early as it may
/// start) and checks that every visit finds its block.
void expect_sound(const TransferSchedule& schedule, const std::vector<std::int64_t>& visits,
                  const std::vector<bool>& resident, std::vector<std::int64_t> slots) {
  std::size_t copied = 0;
  for (std::size_t visit = 0; visit < visits.size(); ++visit) {
    while (copied < schedule.copies.size() &&
           schedule.copies[copied].free_after < static_cast<std::int64_t>(visit)) {
      const BlockCopy& copy = schedule.copies[copied];
      ASSERT_LT(copy.free_after, copy.needed_at);
      slots[static_cast<std::size_t>(copy.slot)] = copy.block;
      ++copied;
    }
    if (resident[static_cast<std::size_t>(visits[visit])]) {
      EXPECT_EQ(schedule.slot_of_visit[visit], -1);
      continue;
    }
    const auto slot = static_cast<std::size_t>(schedule.slot_of_visit[visit]);
    EXPECT_EQ(slots[slot], visits[visit]) << "visit " << visit;
    // Where a copy makes the block ready, it can be done by then.
    if (schedule.copy_of_visit[visit] >= 0) {
      EXPECT_LT(static_cast<std::size_t>(schedule.copy_of_visit[visit]), copied);
    }
  }
  EXPECT_EQ(copied, schedule.copies.size());
  EXPECT_EQ(slots, schedule.slots_at_end);
}

TEST(TransferSchedule, IsSoundForManyShapes) {
  for (std::int64_t blocks = 1; blocks <= 9; ++blocks) {
    for (std::int64_t slots = 1; slots <= 5; ++slots) {
      for (std::int64_t sweeps = 1; sweeps <= 3; ++sweeps) {
        for (int pattern = 0; pattern < 3; ++pattern) {
          std::vector<bool> resident;
          for (std::int64_t block = 0; block < blocks; ++block) {
            resident.push_back(pattern > 0 && block % (pattern + 1) == 0);
          }
          SCOPED_TRACE(testing::Message() << blocks << " blocks, " << slots << " slots, " << sweeps
                                          << " sweeps, pattern " << pattern);
          const std::vector<std::int64_t> visits = zigzag(blocks, sweeps);
          const std::vector<std::int64_t> empty(static_cast<std::size_t>(slots), -1);
          const TransferSchedule first = make_transfer_schedule(visits, resident, empty);
          expect_sound(first, visits, resident, empty);
          // The next step finds what the first one left.
          const TransferSchedule second =
              make_transfer_schedule(visits, resident, first.slots_at_end);
          expect_sound(second, visits, resident, first.slots_at_end);
        }
      }
    }
  }
}

TEST(TransferSchedule, KeepsTheBlocksAtWhichTheOrderTurns) {
  // 6 blocks, 3 slots. Up: 6 copies. Down: 5, 4, 3 are still there, 2, 1, 0 are copied. The next
  // step finds 0, 1, 2, so that it takes 3 copies up and 3 down.
  const std::vector<std::int64_t> visits = zigzag(6, 1);
  const std::vector<bool> resident(6, false);
  const TransferSchedule first = make_transfer_schedule(visits, resident, {-1, -1, -1});
  ASSERT_EQ(first.copies.size(), 9U);
  std::vector<std::int64_t> copied;
  for (const BlockCopy& copy : first.copies) copied.push_back(copy.block);
  EXPECT_EQ(copied, (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 2, 1, 0}));
  EXPECT_EQ(make_transfer_schedule(visits, resident, first.slots_at_end).copies.size(), 6U);
}

TEST(TransferSchedule, CopiesRunAheadOfTheirVisits) {
  // With three slots a copy may start two visits before it is needed, on the way up and down.
  const std::vector<std::int64_t> visits = zigzag(8, 1);
  const TransferSchedule schedule =
      make_transfer_schedule(visits, std::vector<bool>(8, false), {-1, -1, -1});
  for (const BlockCopy& copy : schedule.copies) {
    EXPECT_LE(copy.free_after, std::max<std::int64_t>(-1, copy.needed_at - 3))
        << "block " << copy.block;
  }
}

TEST(TransferSchedule, NamesTheVisitAfterWhichASlotIsDead) {
  const std::vector<std::int64_t> visits = zigzag(4, 1);
  const TransferSchedule schedule =
      make_transfer_schedule(visits, std::vector<bool>(4, false), {-1, -1, -1});
  for (const BlockCopy& copy : schedule.copies) {
    if (copy.free_after >= 0) {
      EXPECT_TRUE(schedule.content_ends[static_cast<std::size_t>(copy.free_after)]);
    }
  }
  EXPECT_EQ(std::count(schedule.content_ends.begin(), schedule.content_ends.end(), true),
            std::count_if(schedule.copies.begin(), schedule.copies.end(),
                          [](const BlockCopy& copy) { return copy.free_after >= 0; }));
}

TEST(TransferSchedule, StreamingWithoutSlotsIsAnError) {
  EXPECT_THROW((void)make_transfer_schedule({0}, {false}, {}), Error);
}

}  // namespace
}  // namespace poros
