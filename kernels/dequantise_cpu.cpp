// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "kernels/backends.hpp"
#include "kernels/parallel.hpp"

namespace poros::cpu {

namespace {

void decode(const Dequantise& op, std::int64_t first, std::int64_t count, std::int64_t to) {
  if (op.dtype == DType::f32) {
    nf4_dequantise_fp32(op.tensor, first, count, static_cast<float*>(op.out) + to);
  } else {
    nf4_dequantise_bf16(op.tensor, first, count, static_cast<Bf16*>(op.out) + to);
  }
}

}  // namespace

void dequantise(const Stream& stream, const Dequantise& op) {
  // Ranges of whole nested blocks, so that each thread decodes an absmax of its own.
  constexpr std::int64_t kRange = kNf4Block * kNf4NestedBlock;
  const std::int64_t ranges = (op.count + kRange - 1) / kRange;
  parallel_for(stream.threads, ranges, 2, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t first = begin * kRange;
    const std::int64_t count = std::min(op.count, end * kRange) - first;
    if (op.cols == 0) {
      decode(op, first, count, first);
      return;
    }
    // The pieces of rows that lie in the range.
    for (std::int64_t at = first; at < first + count;) {
      const std::int64_t row = at / op.cols, column = at % op.cols;
      const std::int64_t piece = std::min(op.cols - column, first + count - at);
      decode(op, at, piece, row * op.out_stride + column);
      at += piece;
    }
  });
  if (op.columns.rows != 0) cpu::low_rank_columns(stream, op.columns);
  if (op.below_count != 0) {
    const auto element = static_cast<std::int64_t>(bytes_of(op.dtype));
    std::memcpy(static_cast<std::byte*>(op.out) + op.count * element, op.below,
                static_cast<std::size_t>(op.below_count * element));
  }
}

}  // namespace poros::cpu
