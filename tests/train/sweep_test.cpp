// SPDX-License-Identifier: Apache-2.0
#include "train/sweep.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "model/token_file.hpp"

namespace poros {
namespace {

constexpr std::uint8_t kStart = TokenFile::kDocumentStart, kTarget = TokenFile::kSupervised,
                       kPad = TokenFile::kPadding;

NumericalPlan small_plan() {
  NumericalPlan plan;
  plan.seq_len = 5;
  plan.batch_size = 2;
  plan.vocab = 50;
  plan.row_counts = {8, 20};
  return plan;
}

Architecture with_tables() {
  Architecture architecture;
  architecture.rope_tables.resize(2);
  architecture.rope_tables[1].original_length = 2;
  return architecture;
}

TEST(Sweep, LaysTokensOneAfterTheOtherWithoutPadding) {
  // Three rows: [10 11 | 12 13 14], [20 21 . . .], [30 31 32 33 34]; the third begins
  // micro-batch 8.
  const std::vector<std::uint32_t> ids = {10, 11, 12, 13, 14, 20, 21, 0, 0, 0, 30, 31, 32, 33, 34};
  const std::vector<std::uint8_t> flags = {kStart, kTarget, kStart,  kTarget, 0,
                                           kStart, kTarget, kPad,    kPad,    kPad,
                                           kStart, kTarget, kTarget, kTarget, kTarget};
  const SweepLayout sweep = lay_out_sweep(with_tables(), small_plan(), ids, flags, 7);
  using Ints = std::vector<std::int32_t>;
  EXPECT_EQ(sweep.tokens, 12);
  EXPECT_EQ(sweep.rows, 20);
  EXPECT_EQ(sweep.supervised, 7);
  const auto real = [](const Ints& values) { return Ints(values.begin(), values.begin() + 12); };
  EXPECT_EQ(real(sweep.ids), (Ints{10, 11, 12, 13, 14, 20, 21, 30, 31, 32, 33, 34}));
  EXPECT_EQ(real(sweep.documents), (Ints{0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 3, 3}));
  EXPECT_EQ(real(sweep.document_begin), (Ints{0, 0, 2, 2, 2, 5, 5, 7, 7, 7, 7, 7}));
  // The target is the next token where that is supervised; never across documents.
  EXPECT_EQ(real(sweep.targets), (Ints{11, -1, 13, -1, -1, 21, -1, 31, 32, 33, 34, -1}));
  EXPECT_EQ(real(sweep.micro_batch), (Ints{7, 7, 7, 7, 7, 7, 7, 8, 8, 8, 8, 8}));
  EXPECT_EQ(real(sweep.row_index), (Ints{0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4}));
  EXPECT_EQ(real(sweep.source_row), (Ints{0, 0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 2}));
  EXPECT_EQ(real(sweep.positions[0]), (Ints{0, 1, 0, 1, 2, 0, 1, 0, 1, 2, 3, 4}));
  // Documents longer than the table's original length use its upper half (from seq_len on).
  EXPECT_EQ(real(sweep.positions[1]), (Ints{0, 1, 5, 6, 7, 0, 1, 5, 6, 7, 8, 9}));
  for (std::size_t row = 12; row < 20; ++row) {
    EXPECT_EQ(sweep.documents[row], -1);
    EXPECT_EQ(sweep.targets[row], -1);
    EXPECT_EQ(sweep.target_ids[row], 0);
    EXPECT_EQ(sweep.ids[row], 0);
  }
}

TEST(Sweep, RefusesWhatNoTokenFileMayHold) {
  const std::vector<std::uint8_t> flags = {kStart, kTarget, kTarget, kTarget, kTarget};
  EXPECT_THROW((void)lay_out_sweep(with_tables(), small_plan(),
                                   std::vector<std::uint32_t>{1, 2, 50, 3, 4}, flags, 0),
               Error);
  const std::vector<std::uint32_t> ids = {1, 2, 3, 4, 5};
  EXPECT_THROW((void)lay_out_sweep(with_tables(), small_plan(), ids,
                                   std::vector<std::uint8_t>{kTarget, 0, 0, 0, 0}, 0),
               Error);
  EXPECT_THROW(
      (void)lay_out_sweep(
          with_tables(), small_plan(), ids,
          std::vector<std::uint8_t>{kStart, 0, static_cast<std::uint8_t>(kStart | kTarget), 0, 0},
          0),
      Error);
}

}  // namespace
}  // namespace poros
