// SPDX-License-Identifier: Apache-2.0
// The forms of B that the products read.
#include "kernels/cuda_backend.hpp"
#include "kernels/low_rank_columns.cuh"

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

template <typename T>
__global__ void __launch_bounds__(kThreads) columns_kernel(Columns<T> op) {
  write_columns(op, blockIdx.x);
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
  const unsigned grid = blocks_of_columns(name, op);
  if (op.dtype == DType::bf16) {
    columns_kernel<<<grid, kThreads, 0, stream_of(stream)>>>(columns_of<Bf>(name, op));
  } else {
    columns_kernel<<<grid, kThreads, 0, stream_of(stream)>>>(columns_of<float>(name, op));
  }
  POROS_CUDA_LAUNCHED(name);
}

}  // namespace poros::cuda
