// SPDX-License-Identifier: Apache-2.0
#include "train/sweep.hpp"

#include "base/error.hpp"
#include "model/token_file.hpp"

namespace poros {
namespace {

void check_token(const NumericalPlan& plan, std::uint32_t id, std::int64_t row,
                 std::int64_t column) {
  if (static_cast<std::int64_t>(id) >= plan.vocab) {
    fail(Fault::input, "tokens: id {} in row {}, column {} is outside the vocabulary of {}", id,
         row, column, plan.vocab);
  }
}

/// Appends the tokens of one row of the file that are no padding.
void append_row(SweepLayout& sweep, const NumericalPlan& plan, std::span<const std::uint32_t> ids,
                std::span<const std::uint8_t> flags, std::int64_t row, std::int64_t micro_batch,
                std::int32_t& index_in_micro_batch, std::int32_t& document) {
  bool first = true;
  for (std::size_t column = 0; column < ids.size(); ++column) {
    if ((flags[column] & TokenFile::kPadding) != 0) continue;
    check_token(plan, ids[column], row, static_cast<std::int64_t>(column));
    const bool starts = first || (flags[column] & TokenFile::kDocumentStart) != 0;
    const bool supervised = (flags[column] & TokenFile::kSupervised) != 0;
    if (starts) {
      ++document;
      if (supervised) {
        fail(Fault::input,
             "tokens: row {}, column {} is the first of its document and marked as a target; "
             "nothing stands before it that could predict it",
             row, column);
      }
    }
    const auto at = static_cast<std::int32_t>(sweep.ids.size());
    const auto id = static_cast<std::int32_t>(ids[column]);
    if (supervised) {
      sweep.targets.back() = id;
      sweep.target_ids.back() = id;
      ++sweep.supervised;
    }
    sweep.ids.push_back(id);
    sweep.documents.push_back(document);
    sweep.document_begin.push_back(starts ? at : sweep.document_begin.back());
    sweep.targets.push_back(-1);
    sweep.target_ids.push_back(0);
    sweep.micro_batch.push_back(static_cast<std::int32_t>(micro_batch));
    sweep.row_index.push_back(index_in_micro_batch++);
    sweep.source_row.push_back(static_cast<std::int32_t>(row));
    first = false;
  }
}

void add_padding(SweepLayout& sweep) {
  while (static_cast<std::int64_t>(sweep.ids.size()) < sweep.rows) {
    sweep.document_begin.push_back(static_cast<std::int32_t>(sweep.ids.size()));
    sweep.ids.push_back(0);
    sweep.documents.push_back(-1);
    sweep.targets.push_back(-1);
    sweep.target_ids.push_back(0);
    sweep.micro_batch.push_back(0);
    sweep.row_index.push_back(0);
    sweep.source_row.push_back(-1);
  }
}

std::vector<std::int32_t> document_offsets(const SweepLayout& sweep, std::int64_t slots) {
  std::vector<std::int32_t> offsets;
  for (std::int64_t row = 0; row < sweep.tokens; ++row) {
    const std::int32_t begin = sweep.document_begin[static_cast<std::size_t>(row)];
    if (begin == row) offsets.push_back(begin);
  }
  while (slots < static_cast<std::int64_t>(offsets.size())) slots *= 2;
  offsets.resize(static_cast<std::size_t>(slots) + 1, static_cast<std::int32_t>(sweep.tokens));
  return offsets;
}

std::vector<std::int32_t> rotary_positions(const SweepLayout& sweep, const RopeTable& table,
                                           std::int64_t seq_len) {
  std::vector<std::int32_t> positions(sweep.ids.size(), 0);
  for (std::int64_t begin = 0; begin < sweep.tokens;) {
    std::int64_t end = begin + 1;
    while (end < sweep.tokens && sweep.documents[static_cast<std::size_t>(end)] ==
                                     sweep.documents[static_cast<std::size_t>(begin)]) {
      ++end;
    }
    const bool long_document = table.original_length > 0 && end - begin > table.original_length;
    for (std::int64_t row = begin; row < end; ++row) {
      positions[static_cast<std::size_t>(row)] =
          static_cast<std::int32_t>(row - begin + (long_document ? seq_len : 0));
    }
    begin = end;
  }
  return positions;
}

}  // namespace

SweepLayout lay_out_sweep(const Architecture& architecture, const NumericalPlan& plan,
                          std::span<const std::uint32_t> ids, std::span<const std::uint8_t> flags,
                          std::int64_t first_micro_batch) {
  const auto seq_len = static_cast<std::size_t>(plan.seq_len);
  SweepLayout sweep;
  std::int32_t document = -1, index_in_micro_batch = 0;
  const auto rows = static_cast<std::int64_t>(ids.size() / seq_len);
  for (std::int64_t row = 0; row < rows; ++row) {
    if (row % plan.batch_size == 0) index_in_micro_batch = 0;
    const std::size_t offset = static_cast<std::size_t>(row) * seq_len;
    append_row(sweep, plan, ids.subspan(offset, seq_len), flags.subspan(offset, seq_len), row,
               first_micro_batch + row / plan.batch_size, index_in_micro_batch, document);
  }
  sweep.tokens = static_cast<std::int64_t>(sweep.ids.size());
  sweep.rows = plan.padded_rows(sweep.tokens);
  add_padding(sweep);
  if (plan.document_slots > 0) {
    sweep.document_offsets = document_offsets(sweep, plan.document_slots);
  }
  for (const RopeTable& table : architecture.rope_tables) {
    sweep.positions.push_back(rotary_positions(sweep, table, plan.seq_len));
  }
  return sweep;
}

}  // namespace poros
