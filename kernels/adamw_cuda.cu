// SPDX-License-Identifier: Apache-2.0
// Norm: one block a chunk of a tensor, then one block joins chunks and tensors in ascending order.
// Update: one block a chunk; clipping, bias correction and the finite flag are read on the device.
#include <algorithm>

#include "kernels/cuda_backend.hpp"
#include "kernels/cuda_common.cuh"

namespace poros::cuda {
namespace {

__device__ __forceinline__ std::int64_t chunks_of(const AdamWTensor& tensor) {
  return (tensor.count + kOptimizerChunk - 1) / kOptimizerChunk;
}

/// first[t] = chunks of the tensors before t. One block.
__global__ void __launch_bounds__(kThreads)
    first_chunk_kernel(const AdamWTensor* tensors, std::int64_t size, std::int64_t* first) {
  __shared__ std::int64_t of_thread[kThreads];
  // Each thread takes a run of neighbouring tensors.
  const std::int64_t run = (size + kThreads - 1) / kThreads;
  const std::int64_t begin = min(size, std::int64_t{threadIdx.x} * run);
  const std::int64_t end = min(size, begin + run);
  std::int64_t mine = 0;
  for (std::int64_t t = begin; t < end; ++t) mine += chunks_of(tensors[t]);
  of_thread[threadIdx.x] = mine;
  __syncthreads();
  std::int64_t next = 0;
  for (unsigned i = 0; i < threadIdx.x; ++i) next += of_thread[i];
  for (std::int64_t t = begin; t < end; ++t) {
    first[t] = next;
    next += chunks_of(tensors[t]);
  }
}

__global__ void __launch_bounds__(kThreads)
    squares_kernel(const AdamWTensor* tensors, const std::int64_t* first, double* partial) {
  const AdamWTensor& tensor = tensors[blockIdx.x];
  const std::int64_t begin = std::int64_t{blockIdx.y} * kOptimizerChunk;
  if (begin >= tensor.count) return;
  const std::int64_t end = min(tensor.count, begin + kOptimizerChunk);
  double sum = 0.0;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const double g = tensor.gradient[i];
    sum += g * g;
  }
  sum = team_sum<kThreads>(sum);
  if (threadIdx.x == 0) partial[first[blockIdx.x] + blockIdx.y] = sum;
}

__global__ void __launch_bounds__(kThreads)
    join_kernel(const AdamWTensor* tensors, std::int64_t size, const std::int64_t* first,
                const double* partial, GradientNorm* result) {
  double squares = 0.0;
  for (std::int64_t t = threadIdx.x; t < size; t += kThreads) {
    double of_tensor = 0.0;
    for (std::int64_t c = 0; c < chunks_of(tensors[t]); ++c) of_tensor += partial[first[t] + c];
    const auto norm = static_cast<double>(static_cast<float>(sqrt(of_tensor)));
    squares += norm * norm;
  }
  squares = team_sum<kThreads>(squares);
  if (threadIdx.x == 0) {
    const auto norm = static_cast<float>(sqrt(squares));
    result->norm = norm;
    result->finite = isfinite(norm) ? 1 : 0;
  }
}

__device__ __forceinline__ bool aligned_16(const float* at) {
  return reinterpret_cast<std::uintptr_t>(at) % 16 == 0;
}

/// Constants of the step that the host knows.
struct Settings {
  double learning_rate, beta1, beta2;
  float max_norm, keep, blend1, beta2_single, rest2, eps;
};

__global__ void __launch_bounds__(kThreads)
    update_kernel(const AdamWTensor* tensors, const GradientNorm* norm, const std::int64_t* step,
                  Settings s) {
  const AdamWTensor tensor = tensors[blockIdx.x];
  const std::int64_t begin = std::int64_t{blockIdx.y} * kOptimizerChunk;
  if (begin >= tensor.count) return;
  if (norm != nullptr && norm->finite == 0) return;
  __shared__ float step_size;
  __shared__ float root2;
  if (threadIdx.x == 0) {
    const auto updates = static_cast<double>(*step + 1);
    root2 = static_cast<float>(sqrt(1.0 - pow(s.beta2, updates)));
    step_size = static_cast<float>(-(s.learning_rate / (1.0 - pow(s.beta1, updates))));
  }
  __syncthreads();
  const float clip = s.max_norm > 0.0F ? fminf(1.0F, s.max_norm / (norm->norm + 1e-6F)) : 1.0F;
  const bool from_end = s.blend1 >= 0.5F;
  const std::int64_t end = min(tensor.count, begin + kOptimizerChunk);
  // Returns the new weight; m and v are replaced.
  const auto update = [&](float weight, float gradient, float& m, float& v) {
    const float g = gradient * clip;
    m = from_end ? g - (g - m) * (1.0F - s.blend1) : m + s.blend1 * (g - m);
    v = v * s.beta2_single + s.rest2 * g * g;
    return weight * s.keep + step_size * m / (sqrtf(v) / root2 + s.eps);
  };
  const auto copy = [&](std::int64_t i, float weight) {
    if (tensor.copy_dtype == DType::bf16) {
      static_cast<Bf*>(tensor.copy)[i] = stored<Bf>(weight);
    } else {
      static_cast<float*>(tensor.copy)[i] = weight;
    }
  };
  std::int64_t i = begin + threadIdx.x;
  if (aligned_16(tensor.weight) && aligned_16(tensor.gradient) && aligned_16(tensor.exp_avg) &&
      aligned_16(tensor.exp_avg_sq)) {
    constexpr int kQuads = 2;  // of each operand on the way at once
    constexpr std::int64_t kPass = std::int64_t{kThreads} * 4 * kQuads;
    const std::int64_t whole = begin + (end - begin) / kPass * kPass;
    for (std::int64_t first = begin; first < whole; first += kPass) {
      Pack<float, 4> w[kQuads];
      Pack<float, 4> g[kQuads];
      Pack<float, 4> m[kQuads];
      Pack<float, 4> v[kQuads];
#pragma unroll
      for (int k = 0; k < kQuads; ++k) {
        const std::int64_t at = first + (k * kThreads + static_cast<int>(threadIdx.x)) * 4;
        w[k] = load_pack<4>(tensor.weight + at);
        g[k] = load_pack<4>(tensor.gradient + at);
        m[k] = load_pack<4>(tensor.exp_avg + at);
        v[k] = load_pack<4>(tensor.exp_avg_sq + at);
      }
#pragma unroll
      for (int k = 0; k < kQuads; ++k) {
        const std::int64_t at = first + (k * kThreads + static_cast<int>(threadIdx.x)) * 4;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          w[k].v[e] = update(w[k].v[e], g[k].v[e], m[k].v[e], v[k].v[e]);
        }
        store_pack(tensor.exp_avg + at, m[k]);
        store_pack(tensor.exp_avg_sq + at, v[k]);
        store_pack(tensor.weight + at, w[k]);
        if (tensor.copy == nullptr) continue;
#pragma unroll
        for (int e = 0; e < 4; ++e) copy(at + e, w[k].v[e]);
      }
    }
    i = whole + threadIdx.x;
  }
  for (; i < end; i += kThreads) {
    float m = tensor.exp_avg[i];
    float v = tensor.exp_avg_sq[i];
    const float weight = update(tensor.weight[i], tensor.gradient[i], m, v);
    tensor.exp_avg[i] = m;
    tensor.exp_avg_sq[i] = v;
    tensor.weight[i] = weight;
    if (tensor.copy != nullptr) copy(i, weight);
  }
}

__global__ void count_kernel(const GradientNorm* norm, std::int64_t* step) {
  if (norm == nullptr || norm->finite != 0) *step += 1;
}

/// Tensors by chunks of the longest tensor; blocks past a tensor's end leave at once.
dim3 chunk_grid(const char* name, const AdamWTensors& tensors) {
  std::int64_t longest = 0;
  for (std::int64_t t = 0; t < tensors.size; ++t) {
    longest = std::max(longest, tensors.host[t].count);
  }
  const std::int64_t chunks = (longest + kOptimizerChunk - 1) / kOptimizerChunk;
  if (chunks > 65535) throw_unsupported(name, "a tensor has more than 2^30 elements");
  return {static_cast<unsigned>(tensors.size), static_cast<unsigned>(chunks)};
}

}  // namespace

void global_norm(const Stream& stream, const GlobalNorm& op) {
  const char* name = "global_norm";
  cudaStream_t queue = stream_of(stream);
  const AdamWTensors& tensors = op.tensors;
  const std::int64_t chunks = global_norm_workspace(tensors) - tensors.size;
  // The tail of the workspace holds each tensor's first chunk.
  static_assert(sizeof(double) == sizeof(std::int64_t));
  auto* first = reinterpret_cast<std::int64_t*>(op.workspace + chunks);
  if (tensors.size > 0) {
    first_chunk_kernel<<<1, kThreads, 0, queue>>>(tensors.device, tensors.size, first);
    POROS_CUDA_LAUNCHED(name);
  }
  if (chunks > 0) {
    squares_kernel<<<chunk_grid(name, tensors), kThreads, 0, queue>>>(tensors.device, first,
                                                                      op.workspace);
    POROS_CUDA_LAUNCHED(name);
  }
  join_kernel<<<1, kThreads, 0, queue>>>(tensors.device, tensors.size, first, op.workspace,
                                         op.result);
  POROS_CUDA_LAUNCHED(name);
}

void adamw_step(const Stream& stream, const AdamWStep& op) {
  const char* name = "adamw_step";
  cudaStream_t queue = stream_of(stream);
  const Settings settings{.learning_rate = op.learning_rate,
                          .beta1 = op.beta1,
                          .beta2 = op.beta2,
                          .max_norm = static_cast<float>(op.max_norm),
                          .keep = static_cast<float>(1.0 - op.learning_rate * op.weight_decay),
                          .blend1 = static_cast<float>(1.0 - op.beta1),
                          .beta2_single = static_cast<float>(op.beta2),
                          .rest2 = static_cast<float>(1.0 - op.beta2),
                          .eps = static_cast<float>(op.eps)};
  const dim3 grid = chunk_grid(name, op.tensors);
  if (grid.x > 0 && grid.y > 0) {
    update_kernel<<<grid, kThreads, 0, queue>>>(op.tensors.device, op.norm, op.step, settings);
    POROS_CUDA_LAUNCHED(name);
  }
  count_kernel<<<1, 1, 0, queue>>>(op.norm, op.step);
  POROS_CUDA_LAUNCHED(name);
}

}  // namespace poros::cuda
