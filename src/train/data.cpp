// SPDX-License-Identifier: Apache-2.0
#include "train/data.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.hpp"

namespace poros {

StepRows::StepRows(TokenFile tokens, std::int64_t batch_size, std::int64_t micro_batches,
                   std::optional<std::uint64_t> shuffle_seed)
    : tokens_(std::move(tokens)),
      rows_per_step_(batch_size * micro_batches),
      shuffle_seed_(shuffle_seed) {
  if (batch_size < 1 || micro_batches < 1) {
    fail(Fault::input, "batch_size {} and gradient_accumulation_steps {} must be at least 1",
         batch_size, micro_batches);
  }
  if (tokens_.rows < 1) fail(Fault::input, "the token file has no rows");
  const auto elements = static_cast<std::size_t>(rows_per_step_ * tokens_.seq_len);
  ids_.resize(elements);
  flags_.resize(elements);
}

const std::vector<std::int64_t>& StepRows::order_of(std::int64_t epoch) const {
  if (order_epoch_ == epoch) return order_;
  order_.resize(static_cast<std::size_t>(tokens_.rows));
  std::iota(order_.begin(), order_.end(), std::int64_t{0});
  // Fisher and Yates' shuffle with splitmix64; std::shuffle may differ between libraries.
  std::uint64_t state = *shuffle_seed_ * 0x9E3779B97F4A7C15U + static_cast<std::uint64_t>(epoch);
  for (std::size_t left = order_.size(); left > 1; --left) {
    std::uint64_t bits = (state += 0x9E3779B97F4A7C15U);
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9U;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBU;
    std::swap(order_[left - 1], order_[(bits ^ (bits >> 31)) % left]);
  }
  order_epoch_ = epoch;
  return order_;
}

std::int64_t StepRows::file_row(std::int64_t step, std::int64_t row) const {
  if (shuffle_seed_) {
    const std::int64_t position = step * rows_per_step_ + row;
    const std::int64_t epoch = position / tokens_.rows, at = position % tokens_.rows;
    return epoch == 0 ? at : order_of(epoch)[static_cast<std::size_t>(at)];
  }
  // Both factors are reduced first, so that no step number overflows the product.
  return ((step % tokens_.rows) * (rows_per_step_ % tokens_.rows) + row) % tokens_.rows;
}

StepBatch StepRows::step(std::int64_t step) {
  const std::int64_t length = tokens_.seq_len;
  for (std::int64_t row = 0; row < rows_per_step_; ++row) {
    const std::int64_t from = file_row(step, row) * length;
    std::copy_n(tokens_.ids.begin() + from, length, ids_.begin() + row * length);
    std::copy_n(tokens_.flags.begin() + from, length, flags_.begin() + row * length);
  }
  return {ids_, flags_};
}

std::int64_t StepRows::supervised_tokens(std::int64_t step) const {
  constexpr auto kMask = TokenFile::kSupervised | TokenFile::kPadding;
  std::int64_t count = 0;
  for (std::int64_t row = 0; row < rows_per_step_; ++row) {
    const auto first = tokens_.flags.begin() + file_row(step, row) * tokens_.seq_len;
    count += std::count_if(first, first + tokens_.seq_len, [](std::uint8_t flags) {
      return (flags & kMask) == TokenFile::kSupervised;
    });
  }
  return count;
}

}  // namespace poros
