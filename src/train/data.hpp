// SPDX-License-Identifier: Apache-2.0
// Which rows of a token file each optimizer step trains on.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/token_file.hpp"
#include "train/executor.hpp"

namespace poros {

/// Deals the rows of a token file to optimizer steps, in the file's order: step s (from 0) takes
/// rows s*R to s*R + R - 1, R = batch_size * micro_batches, and after the last row of the file the
/// first follows. Row r of a step belongs to its micro-batch r / batch_size. The file already
/// is in the order in which every arm reads it; where a seed is given, each time after the first
/// has an order of its own, drawn by seed and number of that time alone.
class StepRows {
 public:
  /// @param shuffle_seed of the orders after the first; none: the file's order every time
  /// @throws Error(Fault::input) when the file has no rows or a count is below 1.
  StepRows(TokenFile tokens, std::int64_t batch_size, std::int64_t micro_batches,
           std::optional<std::uint64_t> shuffle_seed = {});

  /// The rows of a step: ids and flags [R, seq_len]. The spans point into this object and hold
  /// until the next call.
  [[nodiscard]] StepBatch step(std::int64_t step);

  /// Targets of a step: tokens with the flag kSupervised that are no padding; the loss is divided
  /// by this number.
  [[nodiscard]] std::int64_t supervised_tokens(std::int64_t step) const;

  [[nodiscard]] std::int64_t rows_per_step() const { return rows_per_step_; }
  [[nodiscard]] const TokenFile& tokens() const { return tokens_; }

 private:
  [[nodiscard]] std::int64_t file_row(std::int64_t step, std::int64_t row) const;
  [[nodiscard]] const std::vector<std::int64_t>& order_of(std::int64_t epoch) const;

  TokenFile tokens_;
  std::int64_t rows_per_step_;
  std::optional<std::uint64_t> shuffle_seed_;
  mutable std::vector<std::int64_t> order_;  // of order_epoch_
  mutable std::int64_t order_epoch_ = 0;     // 0: none made yet
  std::vector<std::uint32_t> ids_;
  std::vector<std::uint8_t> flags_;
};

}  // namespace poros
