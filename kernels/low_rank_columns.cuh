// SPDX-License-Identifier: Apache-2.0
// Device code of low_rank_columns, by itself and beside a weight that is dequantised. Internal to
// kernels/.
#pragma once

#include "kernels/cuda_common.cuh"
#include "kernels/low_rank.hpp"

namespace poros::cuda {

template <typename T>
struct Columns {
  const T* b;
  T* y;
  std::int64_t rows, y_stride;
  int rank, first, packs;
  bool turned;
  float scale;
};

template <typename T>
Columns<T> columns_of(const char* name, const LowRankColumns& op) {
  const std::int64_t y_stride = stride_or(op.y_stride, op.padded);
  if (!aligned({op.y}) || !multiples(8, {op.padded, y_stride})) {
    throw_unsupported(name, "columns must be aligned to 16 bytes");
  }
  return {static_cast<const T*>(op.b),
          static_cast<T*>(op.y),
          op.rows,
          y_stride,
          static_cast<int>(op.rank),
          static_cast<int>(op.first),
          static_cast<int>(op.padded / 8),
          op.turned,
          op.scale};
}

/// Thread blocks that write them.
inline unsigned blocks_of_columns(const char* name, const LowRankColumns& op) {
  const std::int64_t teams = (op.rows + kWarp - 1) / kWarp * (op.padded / 8);
  return blocks_for(name, teams, kThreads / kWarp);
}

/// A thread writes 8 columns of a row; 32 neighbouring threads take 32 rows, so that they read B
/// side by side where it is turned.
template <typename T>
__device__ __forceinline__ void write_columns(const Columns<T>& op, unsigned block) {
  const std::int64_t team = (std::int64_t{block} * kThreads + threadIdx.x) / kWarp;
  const std::int64_t row = team / op.packs * kWarp + threadIdx.x % kWarp;
  const int begin = static_cast<int>(team % op.packs) * 8;
  if (row >= op.rows) return;
  Pack<T, 8> pack;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int j = begin + i - op.first;
    float value = 0.0F;
    if (j >= 0 && j < op.rank) {
      value = op.scale * value_of(op.b[op.turned ? j * op.rows + row : row * op.rank + j]);
    }
    pack.v[i] = stored<T>(value);
  }
  store_pack(op.y + row * op.y_stride + begin, pack);
}

}  // namespace poros::cuda
