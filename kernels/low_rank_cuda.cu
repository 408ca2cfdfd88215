// SPDX-License-Identifier: Apache-2.0
// The forms of B that the products read.
#include "kernels/cuda_backend.hpp"
#include "kernels/cuda_common.cuh"

namespace poros::cuda {
namespace {

template <typename T>
__global__ void __launch_bounds__(kThreads)
    transpose_kernel(const float* x, T* y, const std::int64_t* list) {
  const std::int64_t offset = list[3 * blockIdx.y], out = list[3 * blockIdx.y + 1];
  const auto rank = static_cast<int>(list[3 * blockIdx.y + 2]);
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= out) return;
  for (int j = 0; j < rank; ++j) {
    y[offset + j * out + i] = stored<T>(x[offset + i * rank + j]);
  }
}

/// A thread writes 8 columns of a row; 32 neighbouring threads take 32 rows, so that they read B
/// side by side where it is turned.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    columns_kernel(const T* b, T* y, std::int64_t rows, int rank, int first, int packs,
                   std::int64_t y_stride, bool turned, float scale) {
  const std::int64_t team = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp;
  const std::int64_t row = team / packs * kWarp + threadIdx.x % kWarp;
  const int begin = static_cast<int>(team % packs) * 8;
  if (row >= rows) return;
  Pack<T, 8> pack;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int j = begin + i - first;
    float value = 0.0F;
    if (j >= 0 && j < rank) {
      value = scale * value_of(b[turned ? j * rows + row : row * rank + j]);
    }
    pack.v[i] = stored<T>(value);
  }
  store_pack(y + row * y_stride + begin, pack);
}

}  // namespace

void low_rank_transpose(const Stream& stream, const LowRankTranspose& op) {
  const char* name = "low_rank_transpose";
  const dim3 grid(blocks_for(name, op.most_out, kThreads), static_cast<unsigned>(op.count));
  if (op.dtype == DType::bf16) {
    transpose_kernel<Bf>
        <<<grid, kThreads, 0, stream_of(stream)>>>(op.x, static_cast<Bf*>(op.y), op.list);
  } else {
    transpose_kernel<float>
        <<<grid, kThreads, 0, stream_of(stream)>>>(op.x, static_cast<float*>(op.y), op.list);
  }
  POROS_CUDA_LAUNCHED(name);
}

void low_rank_columns(const Stream& stream, const LowRankColumns& op) {
  const char* name = "low_rank_columns";
  const std::int64_t y_stride = stride_or(op.y_stride, op.padded);
  if (!aligned({op.y}) || !multiples(8, {op.padded, y_stride})) {
    throw_unsupported(name, "columns must be aligned to 16 bytes");
  }
  const auto packs = static_cast<int>(op.padded / 8);
  const std::int64_t teams = (op.rows + kWarp - 1) / kWarp * packs;
  const auto write = [&](auto* y, const auto* b) {
    columns_kernel<<<blocks_for(name, teams, kThreads / kWarp), kThreads, 0, stream_of(stream)>>>(
        b, y, op.rows, static_cast<int>(op.rank), static_cast<int>(op.first), packs, y_stride,
        op.turned, op.scale);
  };
  if (op.dtype == DType::bf16) {
    write(static_cast<Bf*>(op.y), static_cast<const Bf*>(op.b));
  } else {
    write(static_cast<float*>(op.y), static_cast<const float*>(op.b));
  }
  POROS_CUDA_LAUNCHED(name);
}

}  // namespace poros::cuda
