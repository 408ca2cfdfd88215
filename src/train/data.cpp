// SPDX-License-Identifier: Apache-2.0
#include "train/data.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"

namespace poros {

StepRows::StepRows(TokenFile tokens, std::int64_t batch_size, std::int64_t micro_batches)
    : tokens_(std::move(tokens)), rows_per_step_(batch_size * micro_batches) {
  if (batch_size < 1 || micro_batches < 1) {
    fail(Fault::input, "batch_size {} and gradient_accumulation_steps {} must be at least 1",
         batch_size, micro_batches);
  }
  if (tokens_.rows < 1) fail(Fault::input, "the token file has no rows");
  const auto elements = static_cast<std::size_t>(rows_per_step_ * tokens_.seq_len);
  ids_.resize(elements);
  flags_.resize(elements);
}

std::int64_t StepRows::file_row(std::int64_t step, std::int64_t row) const {
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
