// SPDX-License-Identifier: Apache-2.0
// A team (the block, or one warp for short groups) takes one group. Rows up to Packs*Team*V
// elements stay in registers between the sum of squares and the scaling, so that each is read once.
#include "kernels/cuda_backend.hpp"
#include "kernels/cuda_common.cuh"

namespace poros::cuda {
namespace {

/// Packs == 0: too long for registers, read again. Team: threads of one group.
template <typename T, int V, int Packs, int Team>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(RmsNormForward op, std::int64_t x_stride, std::int64_t y_stride) {
  const std::int64_t item = std::int64_t{blockIdx.x} * (kThreads / Team) + threadIdx.x / Team;
  if (item >= op.rows * op.groups) return;  // whole warps leave (Team 32), or none (Team kThreads)
  const int lane = static_cast<int>(threadIdx.x) % Team;
  const std::int64_t row = item / op.groups;
  const std::int64_t offset = item % op.groups * op.cols;
  const T* x = static_cast<const T*>(op.x) + row * x_stride + offset;
  const T* residual = op.residual == nullptr
                          ? nullptr
                          : static_cast<const T*>(op.residual) + row * x_stride + offset;
  T* r_out = op.residual_out == nullptr
                 ? nullptr
                 : static_cast<T*>(op.residual_out) + row * x_stride + offset;
  T* y = static_cast<T*>(op.y) + row * y_stride + offset;

  // Loads go out before the first store and before the sum is waited for: a thread has all of its
  // share of the row on the way at once.
  constexpr int kHeld = Packs > 0 ? Packs : 1;
  Pack<T, V> held[kHeld];
  float weight[kHeld][V];
  float squares = 0.0F;
  const auto column = [&](int p) { return (std::int64_t{p} * Team + lane) * V; };
  const auto add = [&](Pack<T, V>& r, const Pack<T, V>& more) {
#pragma unroll
    for (int i = 0; i < V; ++i) r.v[i] = stored<T>(value_of(r.v[i]) + value_of(more.v[i]));
  };
  const auto square = [&](const Pack<T, V>& r) {
#pragma unroll
    for (int i = 0; i < V; ++i) squares += value_of(r.v[i]) * value_of(r.v[i]);
  };
  if constexpr (Packs > 0) {
    Pack<T, V> more[Packs];
#pragma unroll
    for (int p = 0; p < Packs; ++p) {
      const std::int64_t c = column(p);
      if (c >= op.cols) continue;
      held[p] = load_pack<V>(x + c);
      if (residual != nullptr) more[p] = load_pack<V>(residual + c);
      load_floats<V>(op.weight, op.weight_dtype, c, weight[p]);
    }
#pragma unroll
    for (int p = 0; p < Packs; ++p) {
      const std::int64_t c = column(p);
      if (c >= op.cols) continue;
      if (residual != nullptr) add(held[p], more[p]);
      if (r_out != nullptr) store_pack(r_out + c, held[p]);
      square(held[p]);
    }
  } else {
    for (std::int64_t c = std::int64_t{lane} * V; c < op.cols; c += Team * V) {
      held[0] = load_pack<V>(x + c);
      if (residual != nullptr) add(held[0], load_pack<V>(residual + c));
      if (r_out != nullptr) store_pack(r_out + c, held[0]);
      square(held[0]);
    }
  }
  const float mean = team_sum<Team>(squares) / static_cast<float>(op.cols);
  const float rstd = 1.0F / sqrtf(mean + op.eps);
  if (lane == 0 && op.rstd != nullptr) op.rstd[item] = rstd;

  const bool plus_one = op.weight_kind == NormWeight::plus_one;
  const auto give = [&](std::int64_t c, const Pack<T, V>& r, const float(&w)[V]) {
    Pack<T, V> out;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float normed = value_of(r.v[i]) * rstd;
      out.v[i] = plus_one ? stored<T>(normed * (1.0F + w[i]))
                          : stored<T>(w[i] * value_of(stored<T>(normed)));
    }
    store_pack(y + c, out);
  };
  if constexpr (Packs > 0) {
#pragma unroll
    for (int p = 0; p < Packs; ++p) {
      if (column(p) < op.cols) give(column(p), held[p], weight[p]);
    }
  } else {
    // A thread reads back only what it wrote itself.
    const T* r = r_out != nullptr ? r_out : x;
    for (std::int64_t c = std::int64_t{lane} * V; c < op.cols; c += Team * V) {
      load_floats<V>(op.weight, op.weight_dtype, c, weight[0]);
      give(c, load_pack<V>(r + c), weight[0]);
    }
  }
}

template <typename T, int V, int Packs, int Team>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(RmsNormBackward op, std::int64_t dy_stride, std::int64_t r_stride,
                    std::int64_t dx_stride) {
  const std::int64_t item = std::int64_t{blockIdx.x} * (kThreads / Team) + threadIdx.x / Team;
  if (item >= op.rows * op.groups) return;
  const int lane = static_cast<int>(threadIdx.x) % Team;
  const std::int64_t row = item / op.groups;
  const std::int64_t offset = item % op.groups * op.cols;
  const T* dy = static_cast<const T*>(op.dy) + row * dy_stride + offset;
  const T* r = static_cast<const T*>(op.r) + row * r_stride + offset;
  const T* residual = op.residual_gradient == nullptr
                          ? nullptr
                          : static_cast<const T*>(op.residual_gradient) + row * dx_stride + offset;
  T* dx = static_cast<T*>(op.dx) + row * dx_stride + offset;
  const float plus = op.weight_kind == NormWeight::plus_one ? 1.0F : 0.0F;

  // Unlike the forward, weights and residual are read when they are needed, the weights twice: held
  // over the sum they would cost so many registers that half as many blocks fit a multiprocessor.
  Pack<T, V> held_dy[Packs > 0 ? Packs : 1];
  Pack<T, V> held_r[Packs > 0 ? Packs : 1];
  float dot = 0.0F;
  const auto take = [&](std::int64_t c, Pack<T, V>& my_dy, Pack<T, V>& my_r) {
    my_dy = load_pack<V>(dy + c);
    my_r = load_pack<V>(r + c);
    float weight[V];
    load_floats<V>(op.weight, op.weight_dtype, c, weight);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      dot += value_of(my_dy.v[i]) * (weight[i] + plus) * value_of(my_r.v[i]);
    }
  };
  if constexpr (Packs > 0) {
#pragma unroll
    for (int p = 0; p < Packs; ++p) {
      const std::int64_t c = (std::int64_t{p} * Team + lane) * V;
      if (c < op.cols) take(c, held_dy[p], held_r[p]);
    }
  } else {
    for (std::int64_t c = std::int64_t{lane} * V; c < op.cols; c += Team * V) {
      take(c, held_dy[0], held_r[0]);
    }
  }
  const float rstd = op.rstd[item];
  const float pull = rstd * rstd * (team_sum<Team>(dot) / static_cast<float>(op.cols));

  const auto give = [&](std::int64_t c, const Pack<T, V>& my_dy, const Pack<T, V>& my_r) {
    float weight[V];
    load_floats<V>(op.weight, op.weight_dtype, c, weight);
    Pack<T, V> more{};
    if (residual != nullptr) more = load_pack<V>(residual + c);
    Pack<T, V> out;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      float dr = rstd * (value_of(my_dy.v[i]) * (weight[i] + plus) - value_of(my_r.v[i]) * pull);
      if (residual != nullptr) dr += value_of(more.v[i]);
      out.v[i] = stored<T>(dr);
    }
    store_pack(dx + c, out);
  };
  if constexpr (Packs > 0) {
#pragma unroll
    for (int p = 0; p < Packs; ++p) {
      const std::int64_t c = (std::int64_t{p} * Team + lane) * V;
      if (c < op.cols) give(c, held_dy[p], held_r[p]);
    }
  } else {
    for (std::int64_t c = std::int64_t{lane} * V; c < op.cols; c += Team * V) {
      give(c, load_pack<V>(dy + c), load_pack<V>(r + c));
    }
  }
}

/// Picks the template by length: one warp for short groups, registers where the row fits.
template <typename T, typename Launch>
void choose(std::int64_t cols, bool wide, const Launch& launch) {
  constexpr int kV = 16 / sizeof(T);
  using std::integral_constant;
  const auto go = [&](auto v, auto packs, auto team) { launch(v, packs, team); };
  if (!wide) {
    if (cols <= 256)
      return go(integral_constant<int, 1>{}, integral_constant<int, 0>{},
                integral_constant<int, kWarp>{});
    return go(integral_constant<int, 1>{}, integral_constant<int, 0>{},
              integral_constant<int, kThreads>{});
  }
  constexpr integral_constant<int, kV> v;
  if (cols <= kWarp * kV * 2) {
    return go(v, integral_constant<int, 2>{}, integral_constant<int, kWarp>{});
  }
  if (cols <= kThreads * kV * 2) {
    return go(v, integral_constant<int, 2>{}, integral_constant<int, kThreads>{});
  }
  if (cols <= kThreads * kV * 3) {
    return go(v, integral_constant<int, 3>{}, integral_constant<int, kThreads>{});
  }
  if (cols <= kThreads * kV * 4) {
    return go(v, integral_constant<int, 4>{}, integral_constant<int, kThreads>{});
  }
  go(v, integral_constant<int, 0>{}, integral_constant<int, kThreads>{});
}

template <typename T>
void forward(const Stream& stream, const RmsNormForward& op) {
  const char* name = "rms_norm_forward";
  const std::int64_t width = op.groups * op.cols;
  const std::int64_t x_stride = stride_or(op.x_stride, width);
  const std::int64_t y_stride = stride_or(op.y_stride, width);
  const bool wide = aligned({op.x, op.residual, op.residual_out, op.weight, op.y}) &&
                    multiples(8, {op.cols, x_stride, y_stride});
  choose<T>(op.cols, wide, [&](auto v, auto packs, auto team) {
    constexpr int kTeam = decltype(team)::value;
    const unsigned grid = blocks_for(name, op.rows * op.groups, kThreads / kTeam);
    forward_kernel<T, decltype(v)::value, decltype(packs)::value, kTeam>
        <<<grid, kThreads, 0, stream_of(stream)>>>(op, x_stride, y_stride);
  });
  POROS_CUDA_LAUNCHED(name);
}

template <typename T>
void backward(const Stream& stream, const RmsNormBackward& op) {
  const char* name = "rms_norm_backward";
  const std::int64_t width = op.groups * op.cols;
  const std::int64_t dy_stride = stride_or(op.dy_stride, width);
  const std::int64_t r_stride = stride_or(op.r_stride, width);
  const std::int64_t dx_stride = stride_or(op.dx_stride, width);
  const bool wide = aligned({op.dy, op.r, op.residual_gradient, op.weight, op.dx}) &&
                    multiples(8, {op.cols, dy_stride, r_stride, dx_stride});
  choose<T>(op.cols, wide, [&](auto v, auto packs, auto team) {
    constexpr int kTeam = decltype(team)::value;
    const unsigned grid = blocks_for(name, op.rows * op.groups, kThreads / kTeam);
    backward_kernel<T, decltype(v)::value, decltype(packs)::value, kTeam>
        <<<grid, kThreads, 0, stream_of(stream)>>>(op, dy_stride, r_stride, dx_stride);
  });
  POROS_CUDA_LAUNCHED(name);
}

}  // namespace

void rms_norm_forward(const Stream& stream, const RmsNormForward& op) {
  op.dtype == DType::f32 ? forward<float>(stream, op) : forward<Bf>(stream, op);
}
void rms_norm_backward(const Stream& stream, const RmsNormBackward& op) {
  op.dtype == DType::f32 ? backward<float>(stream, op) : backward<Bf>(stream, op);
}

}  // namespace poros::cuda
