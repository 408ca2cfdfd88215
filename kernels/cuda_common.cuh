// SPDX-License-Identifier: Apache-2.0
// Shared by the device code: launch check, typed vectors of elements, reductions in a fixed order,
// and the row-wise launch. No atomics anywhere; nothing here synchronises with the host.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/cuda_error.hpp"
#include "kernels/device.hpp"
#include "kernels/dtype.hpp"

/// Every launch is followed by this: a refused launch throws where it happened.
#define POROS_CUDA_LAUNCHED(op)                                                              \
  do {                                                                                       \
    const cudaError_t launch_error = cudaPeekAtLastError();                                  \
    if (launch_error != cudaSuccess) {                                                       \
      (void)cudaGetLastError();                                                              \
      ::poros::cuda::throw_cuda_error(op, cudaGetErrorName(launch_error),                    \
                                      cudaGetErrorString(launch_error), __FILE__, __LINE__); \
    }                                                                                        \
  } while (false)

namespace poros::cuda {

inline constexpr int kThreads = 256;  // of every block
inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFU;

inline cudaStream_t stream_of(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.handle);
}

/// Storage types on the device, by DType.
using Bf = __nv_bfloat16;
using Half = __half;

__device__ __forceinline__ float value_of(float x) {
  return x;
}
__device__ __forceinline__ float value_of(Bf x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ float value_of(Half x) {
  return __half2float(x);
}

template <typename T>
__device__ __forceinline__ T stored(float x);
template <>
__device__ __forceinline__ float stored<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ Bf stored<Bf>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ Half stored<Half>(float x) {
  return __float2half_rn(x);
}

/// V neighbouring elements, moved with 128-bit accesses where V > 1.
template <typename T, int V>
struct alignas(V * sizeof(T) >= 16 ? 16 : V * sizeof(T)) Pack {
  T v[V];
};
// Moved as whole words: the compiler takes a pack of 2-byte elements apart and writes them one by
// one wherever it may, so the store is spelt out.
template <int V, typename T>
__device__ __forceinline__ Pack<T, V> load_pack(const T* at) {
  Pack<T, V> pack;
  if constexpr (sizeof(pack) % sizeof(uint4) == 0) {
    uint4 words[sizeof(pack) / sizeof(uint4)];
#pragma unroll
    for (unsigned i = 0; i < sizeof(pack) / sizeof(uint4); ++i) {
      words[i] = reinterpret_cast<const uint4*>(at)[i];
    }
    memcpy(&pack, words, sizeof(pack));
  } else {
    pack = *reinterpret_cast<const Pack<T, V>*>(at);
  }
  return pack;
}
template <typename T, int V>
__device__ __forceinline__ void store_pack(T* at, const Pack<T, V>& pack) {
  if constexpr (sizeof(pack) % sizeof(uint4) == 0) {
    uint4 words[sizeof(pack) / sizeof(uint4)];
    memcpy(words, &pack, sizeof(pack));
#pragma unroll
    for (unsigned i = 0; i < sizeof(pack) / sizeof(uint4); ++i) {
      asm volatile("st.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(reinterpret_cast<uint4*>(at) + i),
                   "r"(words[i].x), "r"(words[i].y), "r"(words[i].z), "r"(words[i].w)
                   : "memory");
    }
  } else {
    *reinterpret_cast<Pack<T, V>*>(at) = pack;
  }
}

/// V elements of a vector operand whose type is known at run time (weights, biases).
template <int V>
__device__ __forceinline__ void load_floats(const void* base, DType dtype, std::int64_t at,
                                            float (&out)[V]) {
  if (dtype == DType::f32) {
    const auto pack = load_pack<V>(static_cast<const float*>(base) + at);
#pragma unroll
    for (int i = 0; i < V; ++i) out[i] = pack.v[i];
  } else if (dtype == DType::bf16) {
    const auto pack = load_pack<V>(static_cast<const Bf*>(base) + at);
#pragma unroll
    for (int i = 0; i < V; ++i) out[i] = value_of(pack.v[i]);
  } else {
    const auto pack = load_pack<V>(static_cast<const Half*>(base) + at);
#pragma unroll
    for (int i = 0; i < V; ++i) out[i] = value_of(pack.v[i]);
  }
}

/// Whether all pointers are aligned to 16 bytes (null counts as aligned) and all lengths, strides
/// and offsets are multiples of `width` elements.
inline bool aligned(std::initializer_list<const void*> pointers) {
  for (const void* pointer : pointers) {
    if (reinterpret_cast<std::uintptr_t>(pointer) % 16 != 0) return false;
  }
  return true;
}
inline bool multiples(int width, std::initializer_list<std::int64_t> lengths) {
  for (const std::int64_t length : lengths) {
    if (length % width != 0) return false;
  }
  return true;
}

// --- reductions
// ----------------------------------------------------------------------------------- Within a warp
// by halving (xor), across warps in ascending order: a fixed order for a fixed block.

template <typename Number>
__device__ __forceinline__ Number warp_sum(Number value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, offset);
  }
  return value;
}
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}

/// Sum over a team of `Team` threads (a warp, or the block of kThreads). All threads get it.
template <int Team, typename Number>
__device__ __forceinline__ Number team_sum(Number value) {
  value = warp_sum(value);
  if constexpr (Team > kWarp) {
    __shared__ Number of_warp[kThreads / kWarp];
    __syncthreads();  // an earlier sum may still be read
    if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = value;
    __syncthreads();
    value = of_warp[0];
#pragma unroll
    for (int w = 1; w < kThreads / kWarp; ++w) value += of_warp[w];
  }
  return value;
}

template <int Team>
__device__ __forceinline__ float team_max(float value) {
  value = warp_max(value);
  if constexpr (Team > kWarp) {
    __shared__ float of_warp[kThreads / kWarp];
    __syncthreads();
    if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = value;
    __syncthreads();
    value = of_warp[0];
#pragma unroll
    for (int w = 1; w < kThreads / kWarp; ++w) value = fmaxf(value, of_warp[w]);
  }
  return value;
}

// --- row-wise launches
// ----------------------------------------------------------------------------

/// Calls body(row, column) for each V-th column of each row; the body handles V elements.
template <int V, typename Body>
__global__ void __launch_bounds__(kThreads)
    map_rows_kernel(Body body, std::int64_t cols, unsigned tiles) {
  const std::int64_t row = blockIdx.x / tiles;
  const std::int64_t tile = blockIdx.x % tiles;
  const std::int64_t column = (tile * kThreads + threadIdx.x) * V;
  if (column < cols) body.template at<V>(row, column);
}

/// Body: a struct with `template <int V> __device__ void at(int64 row, int64 column) const`.
/// `wide` allows 8 elements a thread; cols must then be a multiple of 8.
template <typename Body>
void map_rows(const char* op, const Stream& stream, const Body& body, std::int64_t rows,
              std::int64_t cols, bool wide) {
  const std::int64_t per_block = std::int64_t{kThreads} * (wide ? 8 : 1);
  const std::int64_t tiles = (cols + per_block - 1) / per_block;
  if (rows * tiles > 0x7FFFFFFF) throw_unsupported(op, "too many elements for one launch");
  if (rows * tiles == 0) return;
  const auto grid = static_cast<unsigned>(rows * tiles);
  if (wide) {
    map_rows_kernel<8>
        <<<grid, kThreads, 0, stream_of(stream)>>>(body, cols, static_cast<unsigned>(tiles));
  } else {
    map_rows_kernel<1>
        <<<grid, kThreads, 0, stream_of(stream)>>>(body, cols, static_cast<unsigned>(tiles));
  }
  POROS_CUDA_LAUNCHED(op);
}

/// Blocks for `items` one-thread or one-team items.
inline unsigned blocks_for(const char* op, std::int64_t items, std::int64_t per_block) {
  const std::int64_t blocks = (items + per_block - 1) / per_block;
  if (blocks > 0x7FFFFFFF) throw_unsupported(op, "too many elements for one launch");
  return static_cast<unsigned>(blocks);
}

inline std::int64_t stride_or(std::int64_t stride, std::int64_t width) {
  return stride != 0 ? stride : width;
}

// --- functions
// ------------------------------------------------------------------------------------ bf16 results
// need far less than fp32 accuracy: there the fast exponential (ex2.approx, error of a few ulp) and
// reciprocal serve; fp32 results take the accurate ones.

template <typename T>
__device__ __forceinline__ float exp_for(float x) {
  if constexpr (sizeof(T) == 4) return expf(x);
  return __expf(x);
}
template <typename T>
__device__ __forceinline__ float sigmoid_for(float x) {
  if constexpr (sizeof(T) == 4) return 1.0F / (1.0F + expf(-x));
  return __fdividef(1.0F, 1.0F + __expf(-x));
}

}  // namespace poros::cuda
