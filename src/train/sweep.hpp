// SPDX-License-Identifier: Apache-2.0
// The tokens of a sweep, laid one after the other without padding, and what the kernels must know
// of each. Host arrays; the executor copies them into the arena.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/architecture.hpp"
#include "plan/numerical_plan.hpp"

namespace poros {

/// All arrays have `rows` entries: `tokens` real ones, then padding.
struct SweepLayout {
  std::int64_t tokens = 0, rows = 0;
  std::int64_t supervised = 0;
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> documents;       // number of the document in the sweep; -1: padding
  std::vector<std::int32_t> document_begin;  // row of the document's first token
  std::vector<std::int32_t> targets;         // id of the next token where it is supervised, else -1
  std::vector<std::int32_t> target_ids;      // the same with 0 for -1: an index that exists
  std::vector<std::int32_t> micro_batch, row_index;  // key dropout: row_index counts in its
                                                     // micro-batch
  std::vector<std::int32_t> source_row;              // row of the token file's part; -1: padding
  /// First row of each document, then `tokens`, again and again until there are as many documents
  /// as the plan's document_slots doubled until they hold them: the others are empty. CUDA only.
  std::vector<std::int32_t> document_offsets;
  /// For each rotary table the row of it that a token takes: its position in the document, in the
  /// upper half of the table where the document is longer than the table's original_length.
  std::vector<std::vector<std::int32_t>> positions;
};

/// Lays out whole rows of a token file.
/// @param ids, flags        [rows, seq_len]
/// @param first_micro_batch number of the micro-batch that the first row belongs to
/// @throws Error(Fault::input) for ids outside the vocabulary or a first token that is supervised
[[nodiscard]] SweepLayout lay_out_sweep(const Architecture& architecture, const NumericalPlan& plan,
                                        std::span<const std::uint32_t> ids,
                                        std::span<const std::uint8_t> flags,
                                        std::int64_t first_micro_batch);

}  // namespace poros
