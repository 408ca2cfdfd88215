// SPDX-License-Identifier: Apache-2.0
// A table in host memory whose rows a sweep gathers: the embedding, the head. The GPU reads the
// rows that it needs over the bus; where the system refuses to page-lock the table, the host
// gathers them.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/dtype.hpp"
#include "model/base_store.hpp"
#include "train/device.hpp"

namespace poros {

/// Rows to gather: y[r] = round(table[index[r]]) * factor, [rows, cols of the table].
struct RowsToGather {
  const std::int32_t* index = nullptr;       // [rows] device memory
  const std::int32_t* host_index = nullptr;  // [rows] the same in host memory
  std::int64_t rows = 0;
  void* y = nullptr;
  DType y_dtype = DType::f32;
  float factor = 1.0F;
};

class HostRows {
 public:
  /// @param table its memory outlives this; on a GPU it is page-locked
  HostRows(const EndTensor& table, const Stream& stream);

  void gather(const Stream& stream, const RowsToGather& op) const;

  [[nodiscard]] std::uint64_t pinned_bytes() const { return range_.pinned_bytes(); }

 private:
  EndTensor table_;
  PinnedRange range_;
};

}  // namespace poros
