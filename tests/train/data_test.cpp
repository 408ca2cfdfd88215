// SPDX-License-Identifier: Apache-2.0
// Which rows a step gets, worked out by hand from the order that model/token_file.hpp defines.
#include "train/data.hpp"

#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace poros {
namespace {

/// Row r holds the ids 10r, 10r + 1, ...; the first token of a row is not supervised.
TokenFile rows_of(std::int64_t rows, std::int64_t seq_len) {
  TokenFile tokens;
  tokens.rows = rows;
  tokens.seq_len = seq_len;
  tokens.vocab = 1000;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < seq_len; ++i) {
      tokens.ids.push_back(static_cast<std::uint32_t>(10 * row + i));
      tokens.flags.push_back(i == 0 ? TokenFile::kDocumentStart : TokenFile::kSupervised);
    }
  }
  return tokens;
}

std::vector<std::uint32_t> first_ids(const StepBatch& batch, std::int64_t seq_len) {
  std::vector<std::uint32_t> ids;
  for (std::size_t i = 0; i < batch.ids.size(); i += static_cast<std::size_t>(seq_len)) {
    ids.push_back(batch.ids[i]);
  }
  return ids;
}

TEST(StepRows, FollowTheFileAndBeginAgainAfterItsLastRow) {
  StepRows rows(rows_of(5, 3), 2, 2);  // 4 rows a step
  EXPECT_EQ(rows.rows_per_step(), 4);
  using Ids = std::vector<std::uint32_t>;
  EXPECT_EQ(first_ids(rows.step(0), 3), (Ids{0, 10, 20, 30}));
  EXPECT_EQ(first_ids(rows.step(1), 3), (Ids{40, 0, 10, 20}));
  EXPECT_EQ(first_ids(rows.step(2), 3), (Ids{30, 40, 0, 10}));
  EXPECT_EQ(first_ids(rows.step(5), 3), (Ids{0, 10, 20, 30}));
  const StepBatch batch = rows.step(1);
  EXPECT_EQ(std::vector<std::uint32_t>(batch.ids.begin(), batch.ids.end()),
            (Ids{40, 41, 42, 0, 1, 2, 10, 11, 12, 20, 21, 22}));
  EXPECT_EQ(batch.flags.size(), batch.ids.size());
  EXPECT_EQ(batch.flags[3], TokenFile::kDocumentStart);
  EXPECT_EQ(batch.flags[4], TokenFile::kSupervised);
}

TEST(StepRows, AFileSmallerThanAStepIsRepeatedInTheStep) {
  StepRows rows(rows_of(3, 2), 1, 8);
  using Ids = std::vector<std::uint32_t>;
  EXPECT_EQ(first_ids(rows.step(0), 2), (Ids{0, 10, 20, 0, 10, 20, 0, 10}));
  EXPECT_EQ(first_ids(rows.step(1), 2), (Ids{20, 0, 10, 20, 0, 10, 20, 0}));
}

TEST(StepRows, LargeStepNumbersDoNotOverflow) {
  StepRows rows(rows_of(7, 2), 3, 5);
  const std::int64_t step = std::numeric_limits<std::int64_t>::max() / 2;
  // First row (step mod 7) * (15 mod 7) mod 7 = (step mod 7) * 1.
  EXPECT_EQ(first_ids(rows.step(step), 2)[0], static_cast<std::uint32_t>(10 * (step % 7)));
}

TEST(StepRows, SupervisedTokensLeaveOutPadding) {
  TokenFile tokens = rows_of(2, 4);
  tokens.flags[3] = TokenFile::kPadding;                           // row 0: 2 targets
  tokens.flags[6] = TokenFile::kPadding | TokenFile::kSupervised;  // row 1: 2 targets
  StepRows rows(tokens, 1, 3);
  EXPECT_EQ(rows.supervised_tokens(0), 2 + 2 + 2);
  EXPECT_EQ(rows.supervised_tokens(1), 2 + 2 + 2);
  StepRows single(tokens, 1, 1);
  EXPECT_EQ(single.supervised_tokens(0), 2);
}

TEST(StepRows, RefusesEmptyFilesAndShapes) {
  EXPECT_THROW(StepRows(rows_of(0, 4), 1, 1), Error);
  EXPECT_THROW(StepRows(rows_of(2, 4), 0, 1), Error);
  EXPECT_THROW(StepRows(rows_of(2, 4), 1, 0), Error);
}

}  // namespace
}  // namespace poros
