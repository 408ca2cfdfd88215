// SPDX-License-Identifier: Apache-2.0
#include "train/host_rows.hpp"

#include "kernels/elementwise.hpp"
#include "train/loss_head.hpp"

namespace poros {

HostRows::HostRows(const EndTensor& table, const Stream& stream)
    : table_(table),
      range_(table.data,
             static_cast<std::uint64_t>(table.rows * table.cols) * bytes_per_element(table.storage),
             stream) {}

void HostRows::gather(const Stream& stream, const RowsToGather& op) const {
  GatherRows rows = {.source = table_.data,
                     .index = op.index,
                     .y = op.y,
                     .rows = op.rows,
                     .cols = table_.cols,
                     .source_rows = table_.rows,
                     .source_dtype = storage_dtype(table_),
                     .y_dtype = op.y_dtype,
                     .factor = op.factor};
  if (range_.pinned()) {
    gather_rows(stream, rows);
    return;
  }
  const std::uint64_t bytes =
      static_cast<std::uint64_t>(op.rows * table_.cols) * bytes_of(op.y_dtype);
  std::vector<std::byte> gathered(bytes);
  rows.index = op.host_index;
  rows.y = gathered.data();
  gather_rows(Stream{}, rows);
  copy_bytes(stream, op.y, gathered.data(), bytes);
  synchronise(stream);  // `gathered` goes
}

}  // namespace poros
