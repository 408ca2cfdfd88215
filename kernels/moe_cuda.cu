// SPDX-License-Identifier: Apache-2.0
// Routing: one warp a token. Sorting: one block an expert, in slot order, so that it is stable.
#include "kernels/cuda_backend.hpp"
#include "kernels/cuda_common.cuh"

namespace poros::cuda {
namespace {

constexpr int kWarps = kThreads / kWarp;
constexpr int kPerLane = static_cast<int>(kMaxExperts) / kWarp;

template <typename T>
__global__ void __launch_bounds__(kThreads) route_kernel(MoeRoute op) {
  const std::int64_t token = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (token >= op.tokens) return;
  const auto lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto experts = static_cast<int>(op.experts);
  const T* logits = static_cast<const T*>(op.logits) + token * op.experts;
  float* p = op.probabilities + token * op.experts;
  float largest = __int_as_float(0xFF800000);
  for (int e = lane; e < experts; e += kWarp) largest = fmaxf(largest, value_of(logits[e]));
  largest = warp_max(largest);
  float sum = 0.0F;
  for (int e = lane; e < experts; e += kWarp) sum += expf(value_of(logits[e]) - largest);
  sum = warp_sum(sum);
  for (int e = lane; e < experts; e += kWarp) p[e] = expf(value_of(logits[e]) - largest) / sum;
  // A lane looks only at the experts it wrote itself; `taken` marks its chosen ones.
  static_assert(kPerLane <= 32);
  unsigned taken = 0;
  float chosen_sum = 0.0F;
  float mine = 0.0F;  // lane j ends up with the j-th choice
  for (int j = 0; j < op.k; ++j) {
    float best = -1.0F;
    int best_expert = experts;  // larger than any
    for (int e = lane, i = 0; e < experts; e += kWarp, ++i) {
      if ((taken >> i & 1U) == 0 && p[e] > best) {
        best = p[e];
        best_expert = e;
      }
    }
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      const float other = __shfl_xor_sync(kAllLanes, best, offset);
      const int other_expert = __shfl_xor_sync(kAllLanes, best_expert, offset);
      if (other > best || (other == best && other_expert < best_expert)) {
        best = other;
        best_expert = other_expert;
      }
    }
    if (best_expert >= experts) {  // every probability is NaN: keep the index valid, the weight NaN
      best_expert = j;
      best = __int_as_float(0x7FC00000);
    }
    if (best_expert % kWarp == lane) taken |= 1U << (best_expert / kWarp);
    if (lane == j) mine = best;
    if (lane == 0) op.expert[token * op.k + j] = best_expert;
    chosen_sum += best;
  }
  if (lane < op.k) {
    const float weight = op.normalise ? mine / chosen_sum : mine;
    op.weights[token * op.k + lane] =
        op.weights_dtype == DType::bf16 ? value_of(stored<Bf>(weight)) : weight;
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) route_backward_kernel(MoeRouteBackward op) {
  const std::int64_t token = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (token >= op.tokens) return;
  const auto lane = static_cast<int>(threadIdx.x) % kWarp;
  const float* p = op.probabilities + token * op.experts;
  const std::int32_t* chosen = op.expert + token * op.k;
  const float* dweights = op.dweights + token * op.k;
  T* dlogits = static_cast<T*>(op.dlogits) + token * op.experts;
  // k is small: every lane walks it in the same order.
  float sum = 1.0F;
  float pull = 0.0F;
  if (op.normalise) {
    sum = 0.0F;
    for (int j = 0; j < op.k; ++j) sum += p[chosen[j]];
    for (int j = 0; j < op.k; ++j) pull += dweights[j] * (p[chosen[j]] / sum);
  }
  float mean = 0.0F;
  for (int j = 0; j < op.k; ++j) mean += p[chosen[j]] * ((dweights[j] - pull) / sum);
  for (int e = lane; e < op.experts; e += kWarp) {
    float dp = 0.0F;
    for (int j = 0; j < op.k; ++j) {
      if (chosen[j] == e) dp = (dweights[j] - pull) / sum;
    }
    dlogits[e] = stored<T>(p[e] * (dp - mean));
  }
}

/// counts[e + 1] = slots of expert e; and the outputs' unused places.
__global__ void __launch_bounds__(kThreads) count_kernel(MoeSort op, std::int64_t rows) {
  const auto expert = static_cast<std::int32_t>(blockIdx.x);
  const std::int64_t slots = op.tokens * op.k;
  int mine = 0;
  for (std::int64_t s = threadIdx.x; s < slots; s += kThreads) mine += op.expert[s] == expert;
  const int count = team_sum<kThreads>(mine);
  if (threadIdx.x == 0) {
    op.offsets[expert + 1] = count;
    if (expert == 0) op.offsets[0] = 0;
  }
  // Each block clears its share of the outputs.
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t s = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; s < rows; s += step) {
    op.slot[s] = -1;
    op.token[s] = -1;
    if (s < slots) op.position[s] = -1;
  }
}

/// Counts to offsets. One thread: at most kMaxExperts additions.
__global__ void offsets_kernel(std::int32_t* offsets, std::int64_t experts, int granule) {
  std::int32_t sum = 0;
  for (std::int64_t e = 1; e <= experts; ++e) {
    sum += (offsets[e] + granule - 1) / granule * granule;
    offsets[e] = sum;
  }
}

__global__ void __launch_bounds__(kThreads) row_keys_kernel(MoeRowKeys op) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= op.rows) return;
  const std::int64_t slot = op.slot[row], token = slot / op.k;
  op.micro_batch[row] = slot < 0 ? 0 : op.token_micro_batch[token];
  op.row_index[row] =
      slot < 0 ? 0 : static_cast<std::int32_t>(op.token_row_index[token] * op.k + slot % op.k);
}

__global__ void __launch_bounds__(kThreads) place_kernel(MoeSort op) {
  __shared__ int of_warp[kWarps];
  const auto expert = static_cast<std::int32_t>(blockIdx.x);
  const auto lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t slots = op.tokens * op.k;
  std::int32_t next = op.offsets[expert];
  for (std::int64_t base = 0; base < slots; base += kThreads) {
    const std::int64_t s = base + threadIdx.x;
    const bool hit = s < slots && op.expert[s] == expert;
    const unsigned hits = __ballot_sync(kAllLanes, hit);
    if (lane == 0) of_warp[warp] = __popc(hits);
    __syncthreads();
    int before = 0;
    int all = 0;
    for (int w = 0; w < kWarps; ++w) {
      before += w < warp ? of_warp[w] : 0;
      all += of_warp[w];
    }
    if (hit) {
      const std::int32_t at = next + before + __popc(hits & ((1U << lane) - 1U));
      op.position[s] = at;
      op.slot[at] = static_cast<std::int32_t>(s);
      op.token[at] = static_cast<std::int32_t>(s / op.k);
    }
    next += all;
    __syncthreads();
  }
}

template <typename T>
struct Combine {
  MoeCombine op;

  template <int V>
  __device__ void at(std::int64_t token, std::int64_t c) const {
    float sum[V] = {};
    for (int j = 0; j < op.k; ++j) {
      const std::int64_t position = op.position[token * op.k + j];
      if (position < 0) continue;
      const float weight = op.weights != nullptr ? op.weights[token * op.k + j] : 1.0F;
      const auto x = load_pack<V>(static_cast<const T*>(op.x) + position * op.cols + c);
#pragma unroll
      for (int i = 0; i < V; ++i) sum[i] += weight * value_of(x.v[i]);
    }
    Pack<T, V> y;
#pragma unroll
    for (int i = 0; i < V; ++i) y.v[i] = stored<T>(sum[i]);
    store_pack(static_cast<T*>(op.y) + token * op.cols + c, y);
  }
};

/// One block a slot: dx and the dot product in one reading.
template <typename T, int V>
__global__ void __launch_bounds__(kThreads) combine_backward_kernel(MoeCombineBackward op) {
  const std::int64_t slot = blockIdx.x;
  const std::int64_t position = op.position[slot];
  if (position < 0) {
    if (threadIdx.x == 0 && op.dweights != nullptr) op.dweights[slot] = 0.0F;
    return;
  }
  const T* dy = static_cast<const T*>(op.dy) + slot / op.k * op.dy_stride;
  const T* x = static_cast<const T*>(op.x) + position * op.cols;
  T* dx = static_cast<T*>(op.dx) + position * op.cols;
  const float weight = op.weights[slot];
  float dot = 0.0F;
  for (std::int64_t c = std::int64_t{threadIdx.x} * V; c < op.cols; c += kThreads * V) {
    const auto my_dy = load_pack<V>(dy + c);
    Pack<T, V> my_x{};
    if (op.dweights != nullptr) my_x = load_pack<V>(x + c);
    Pack<T, V> out;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      if (op.dweights != nullptr) dot += value_of(my_dy.v[i]) * value_of(my_x.v[i]);
      out.v[i] = stored<T>(weight * value_of(my_dy.v[i]));
    }
    store_pack(dx + c, out);
  }
  if (op.dweights == nullptr) return;
  dot = team_sum<kThreads>(dot);
  if (threadIdx.x == 0) op.dweights[slot] = dot;
}

template <typename T>
void combine_backward(const Stream& stream, const MoeCombineBackward& given) {
  const char* name = "moe_combine_backward";
  MoeCombineBackward op = given;
  op.dy_stride = stride_or(op.dy_stride, op.cols);
  const unsigned grid = blocks_for(name, op.tokens * op.k, 1);
  if (aligned({op.dy, op.x, op.dx}) && multiples(8, {op.cols, op.dy_stride})) {
    combine_backward_kernel<T, 8><<<grid, kThreads, 0, stream_of(stream)>>>(op);
  } else {
    combine_backward_kernel<T, 1><<<grid, kThreads, 0, stream_of(stream)>>>(op);
  }
  POROS_CUDA_LAUNCHED(name);
}

}  // namespace

void moe_route(const Stream& stream, const MoeRoute& op) {
  const char* name = "moe_route";
  const unsigned grid = blocks_for(name, op.tokens, kWarps);
  if (op.dtype == DType::f32) {
    route_kernel<float><<<grid, kThreads, 0, stream_of(stream)>>>(op);
  } else {
    route_kernel<Bf><<<grid, kThreads, 0, stream_of(stream)>>>(op);
  }
  POROS_CUDA_LAUNCHED(name);
}

void moe_route_backward(const Stream& stream, const MoeRouteBackward& op) {
  const char* name = "moe_route_backward";
  const unsigned grid = blocks_for(name, op.tokens, kWarps);
  if (op.dtype == DType::f32) {
    route_backward_kernel<float><<<grid, kThreads, 0, stream_of(stream)>>>(op);
  } else {
    route_backward_kernel<Bf><<<grid, kThreads, 0, stream_of(stream)>>>(op);
  }
  POROS_CUDA_LAUNCHED(name);
}

void moe_sort(const Stream& stream, const MoeSort& op) {
  const char* name = "moe_sort";
  const auto grid = static_cast<unsigned>(op.experts);
  count_kernel<<<grid, kThreads, 0, stream_of(stream)>>>(
      op, moe_sorted_rows(op.tokens * op.k, op.experts, op.granule));
  POROS_CUDA_LAUNCHED(name);
  offsets_kernel<<<1, 1, 0, stream_of(stream)>>>(op.offsets, op.experts,
                                                 static_cast<int>(op.granule));
  POROS_CUDA_LAUNCHED(name);
  place_kernel<<<grid, kThreads, 0, stream_of(stream)>>>(op);
  POROS_CUDA_LAUNCHED(name);
}

void moe_row_keys(const Stream& stream, const MoeRowKeys& op) {
  const char* name = "moe_row_keys";
  row_keys_kernel<<<blocks_for(name, op.rows, kThreads), kThreads, 0, stream_of(stream)>>>(op);
  POROS_CUDA_LAUNCHED(name);
}

void moe_combine(const Stream& stream, const MoeCombine& op) {
  const char* name = "moe_combine";
  const bool wide = aligned({op.x, op.y}) && multiples(8, {op.cols});
  op.dtype == DType::f32 ? map_rows(name, stream, Combine<float>{op}, op.tokens, op.cols, wide)
                         : map_rows(name, stream, Combine<Bf>{op}, op.tokens, op.cols, wide);
}

void moe_combine_backward(const Stream& stream, const MoeCombineBackward& op) {
  op.dtype == DType::f32 ? combine_backward<float>(stream, op) : combine_backward<Bf>(stream, op);
}

}  // namespace poros::cuda
