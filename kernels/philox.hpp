// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) and dropout
// whose mask is a pure function of where an element stands. No mask is ever stored: the backward
// and a recomputation make it again, under any schedule and residency.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/device.hpp"
#include "kernels/dtype.hpp"

namespace poros {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

/// Ten rounds; four uniform 32-bit words.
[[nodiscard]] PhiloxCounter philox4x32_10(PhiloxCounter counter, PhiloxKey key);

/// Limits of the packed counter word: micro_batch 12 bits, layer 8 bits, site 12 bits.
inline constexpr std::uint32_t kMaxMicroBatches = 4096, kMaxDropoutLayers = 256,
                               kMaxDropoutSites = 4096;

/// y = keep ? x / (1 - p) : 0 (accumulate: added to y). Element (row, column) is kept iff word
/// column%4 of philox(counter = {column/4, row, step, micro_batch<<20 | layer<<12 | site},
/// key = {low, high 32 bits of seed}) is at least p * 2^32. `row` counts within the micro-batch:
/// row r of x is row_index[r] of micro_batch[r] when these are given, else row
/// r % rows_per_micro_batch of first_micro_batch + r / rows_per_micro_batch.
struct Dropout {
  const void* x = nullptr;
  void* y = nullptr;  // may be x
  std::int64_t rows = 0, cols = 0;
  std::int64_t x_stride = 0, y_stride = 0;  // elements from row to row; 0: cols
  DType dtype = DType::f32;                 // of x and y: f32 or bf16
  bool accumulate = false;
  float p = 0.0F;  // 0 <= p < 1
  std::uint64_t seed = 0;
  std::uint32_t step = 0, layer = 0, site = 0;
  std::uint32_t first_micro_batch = 0;
  std::int64_t rows_per_micro_batch = 0;      // 0: all rows are one micro-batch
  const std::int32_t* micro_batch = nullptr;  // [rows], or null
  const std::int32_t* row_index = nullptr;    // [rows], or null; both or none
};
void dropout_forward(const Stream& stream, const Dropout& op);
/// x is the gradient of the output, y that of the input: the same mask and scale.
void dropout_backward(const Stream& stream, const Dropout& op);

}  // namespace poros
