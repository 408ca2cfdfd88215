// SPDX-License-Identifier: Apache-2.0
// One block a row of logits; maximum and sum run in registers, so a chunk is read once.
#include "kernels/cuda_backend.hpp"
#include "kernels/cuda_common.cuh"

namespace poros::cuda {
namespace {

__device__ __forceinline__ float minus_infinity() {
  return __int_as_float(0xFF800000);
}
__device__ __forceinline__ float nan_value() {
  return __int_as_float(0x7FC00000);
}

__device__ __forceinline__ float counted(float logit, float cap) {
  return cap > 0.0F ? cap * tanhf(logit / cap) : logit;
}
__device__ __forceinline__ float slope_at(float value, float cap) {
  return cap > 0.0F ? 1.0F - (value / cap) * (value / cap) : 1.0F;
}

struct Init {
  CrossEntropyState state;

  template <int V>
  __device__ void at(std::int64_t, std::int64_t row) const {
    for (int i = 0; i < V; ++i) {
      state.max[row + i] = minus_infinity();
      state.sum[row + i] = 0.0F;
      state.target_logit[row + i] = nan_value();
    }
  }
};

/// Packs of a row that a thread keeps in registers.
template <int V>
constexpr int kKept = static_cast<int>(kCrossEntropyInPlace / (V * kThreads));

template <typename T, typename E, int V, bool kept>
__global__ void __launch_bounds__(kThreads)
    accumulate_kernel(CrossEntropyAccumulate op, std::int64_t stride) {
  const std::int64_t row = blockIdx.x;
  const T* logits = static_cast<const T*>(op.logits) + row * stride;
  // Narrower ones in the logits' place begin where the logits' rows do.
  const std::int64_t widening =
      op.exponentials == op.logits ? static_cast<std::int64_t>(sizeof(T) / sizeof(E)) : 1;
  E* exponentials = op.exponentials == nullptr
                        ? nullptr
                        : static_cast<E*>(op.exponentials) + row * stride * widening;
  const std::int64_t target = std::int64_t{op.targets[row]} - op.first_class;
  constexpr std::int64_t kPass = std::int64_t{kThreads} * V;
  const std::int64_t mine = std::int64_t{threadIdx.x} * V;
  if (op.targets[row] < 0) {
    if (threadIdx.x == 0 && op.rescale != nullptr) op.rescale[row] = 0.0F;
    if (exponentials != nullptr) {
      Pack<E, V> zeros;
      for (int i = 0; i < V; ++i) zeros.v[i] = stored<E>(0.0F);
      for (std::int64_t c = mine; c < op.classes; c += kPass) store_pack(exponentials + c, zeros);
    }
    return;
  }
  float value[kept ? kKept<V> : 1][V];
  const auto load = [&](std::int64_t c, float(&into)[V]) {
    const Pack<T, V> pack = load_pack<V>(logits + c);
#pragma unroll
    for (int i = 0; i < V; ++i) into[i] = counted(value_of(pack.v[i]), op.softcap);
  };
  float my_max = minus_infinity();
  if constexpr (kept) {
#pragma unroll
    for (int p = 0; p < kKept<V>; ++p) {
      if (mine + p * kPass >= op.classes) continue;
      load(mine + p * kPass, value[p]);
#pragma unroll
      for (int i = 0; i < V; ++i) my_max = fmaxf(my_max, value[p][i]);
    }
  } else {
    for (std::int64_t c = mine; c < op.classes; c += kPass) {
      load(c, value[0]);
#pragma unroll
      for (int i = 0; i < V; ++i) my_max = fmaxf(my_max, value[0][i]);
    }
  }
  const float chunk_max = team_max<kThreads>(my_max);
  const float old_max = op.state.max[row];
  const float new_max = fmaxf(old_max, chunk_max);
  float my_sum = 0.0F;
  const auto exponentiate = [&](std::int64_t c, const float(&of)[V]) {
    Pack<E, V> out;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      // Where all are -inf, value - max is NaN; a NaN among the logits must show.
      const float e = of[i] == minus_infinity() ? 0.0F : exp_for<float>(of[i] - new_max);
      my_sum += e;
      out.v[i] = stored<E>(e * slope_at(of[i], op.softcap));
    }
    if (exponentials != nullptr) store_pack(exponentials + c, out);
  };
  // Exponentials may be the logits: the target is read before they are written.
  float target_logit = 0.0F;
  const bool here = target >= 0 && target < op.classes;
  if (threadIdx.x == 0 && here) target_logit = counted(value_of(logits[target]), op.softcap);
  __syncthreads();
  if constexpr (kept) {
#pragma unroll
    for (int p = 0; p < kKept<V>; ++p) {
      if (mine + p * kPass < op.classes) exponentiate(mine + p * kPass, value[p]);
    }
  } else {
    for (std::int64_t c = mine; c < op.classes; c += kPass) {
      load(c, value[0]);
      exponentiate(c, value[0]);
    }
  }
  const float chunk_sum = team_sum<kThreads>(my_sum);
  if (threadIdx.x != 0) return;
  // All threads have read the state: team_sum synchronised them.
  const float rescale = expf(old_max - new_max);
  if (here) op.state.target_logit[row] = target_logit;
  op.state.sum[row] = op.state.sum[row] * rescale + chunk_sum;
  op.state.max[row] = new_max;
  if (op.rescale != nullptr) op.rescale[row] = rescale;
}

template <typename T>
struct Gradient {
  CrossEntropyGradient op;  // stride resolved

  template <int V>
  __device__ void at(std::int64_t row, std::int64_t c) const {
    T* at = static_cast<T*>(op.logits) + row * op.row_stride + c;
    const std::int32_t target = op.targets[row];
    Pack<T, V> pack;
    if (target < 0) {
#pragma unroll
      for (int i = 0; i < V; ++i) pack.v[i] = stored<T>(0.0F);
      store_pack(at, pack);
      return;
    }
    pack = load_pack<V>(at);
    const float max = op.state.max[row];
    const float sum = op.state.sum[row];
    const std::int64_t hot = std::int64_t{target} - op.first_class - c;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float value = counted(value_of(pack.v[i]), op.softcap);
      float p = exp_for<T>(value - max) / sum;
      if (i == hot) p -= 1.0F;
      pack.v[i] = stored<T>(p * slope_at(value, op.softcap) * op.inv_supervised_tokens);
    }
    store_pack(at, pack);
  }
};

/// One block: each thread takes rows in ascending order, then the threads' sums are joined.
__global__ void __launch_bounds__(kThreads) loss_kernel(CrossEntropyLoss op) {
  double mine = 0.0;
  for (std::int64_t row = threadIdx.x; row < op.rows; row += kThreads) {
    float loss = 0.0F;
    if (op.targets[row] >= 0) {
      loss = static_cast<float>(static_cast<double>(op.state.max[row]) +
                                log(static_cast<double>(op.state.sum[row])) -
                                static_cast<double>(op.state.target_logit[row]));
    }
    op.row_loss[row] = loss;
    mine += static_cast<double>(loss);
  }
  const double total = team_sum<kThreads>(mine);
  if (threadIdx.x == 0) *op.total = (op.add_to_total ? *op.total : 0.0) + total;
}

template <typename T>
struct Finish {
  CrossEntropyFinish op;

  template <int V>
  __device__ void at(std::int64_t row, std::int64_t c) const {
    const std::int64_t place = row * op.hidden + c;
    Pack<T, V> out;
    if (op.targets[row] < 0) {
#pragma unroll
      for (int i = 0; i < V; ++i) out.v[i] = stored<T>(0.0F);
    } else {
      const Pack<float, V> accumulated = load_pack<V>(op.accumulated + place);
      float head[V];
      load_floats<V>(op.target_rows, op.target_dtype, place, head);
      const float sum = op.state.sum[row];
      const float slope = slope_at(op.state.target_logit[row], op.softcap);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        out.v[i] = stored<T>((accumulated.v[i] / sum - slope * head[i]) * op.inv_supervised_tokens);
      }
    }
    store_pack(static_cast<T*>(op.dx) + place, out);
  }
};

template <typename T, typename E>
void accumulate(const Stream& stream, const CrossEntropyAccumulate& op) {
  const char* name = "cross_entropy_accumulate";
  const std::int64_t stride = stride_or(op.row_stride, op.classes);
  const unsigned grid = blocks_for(name, op.rows, 1);
  const bool wide = aligned({op.logits, op.exponentials}) && multiples(8, {op.classes, stride});
  // In place all of a row has to be in registers before the first exponential is written.
  const bool kept = op.classes <= kCrossEntropyInPlace;
  const auto kernel =
      wide ? (kept ? accumulate_kernel<T, E, 8, true> : accumulate_kernel<T, E, 8, false>)
           : (kept ? accumulate_kernel<T, E, 1, true> : accumulate_kernel<T, E, 1, false>);
  kernel<<<grid, kThreads, 0, stream_of(stream)>>>(op, stride);
  POROS_CUDA_LAUNCHED(name);
}

}  // namespace

void cross_entropy_init(const Stream& stream, const CrossEntropyState& state, std::int64_t rows) {
  map_rows("cross_entropy_init", stream, Init{state}, 1, rows, false);
}

void cross_entropy_accumulate(const Stream& stream, const CrossEntropyAccumulate& op) {
  if (op.round_exponentials) {
    accumulate<float, Bf>(stream, op);
  } else if (op.dtype == DType::f32) {
    accumulate<float, float>(stream, op);
  } else {
    accumulate<Bf, Bf>(stream, op);
  }
}

void cross_entropy_loss(const Stream& stream, const CrossEntropyLoss& op) {
  loss_kernel<<<1, kThreads, 0, stream_of(stream)>>>(op);
  POROS_CUDA_LAUNCHED("cross_entropy_loss");
}

void cross_entropy_gradient(const Stream& stream, const CrossEntropyGradient& given) {
  CrossEntropyGradient op = given;
  op.row_stride = stride_or(op.row_stride, op.classes);
  const char* name = "cross_entropy_gradient";
  const bool wide = aligned({op.logits}) && multiples(8, {op.classes, op.row_stride});
  op.dtype == DType::f32 ? map_rows(name, stream, Gradient<float>{op}, op.rows, op.classes, wide)
                         : map_rows(name, stream, Gradient<Bf>{op}, op.rows, op.classes, wide);
}

void cross_entropy_finish(const Stream& stream, const CrossEntropyFinish& op) {
  const char* name = "cross_entropy_finish";
  const bool wide = aligned({op.accumulated, op.target_rows, op.dx}) && multiples(8, {op.hidden});
  op.dtype == DType::f32 ? map_rows(name, stream, Finish<float>{op}, op.rows, op.hidden, wide)
                         : map_rows(name, stream, Finish<Bf>{op}, op.rows, op.hidden, wide);
}

}  // namespace poros::cuda
