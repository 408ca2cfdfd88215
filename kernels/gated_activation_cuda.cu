// SPDX-License-Identifier: Apache-2.0
// Bound by memory: 8 elements a thread, 128-bit accesses, each operand touched once.
#include "kernels/cuda_backend.hpp"
#include "kernels/cuda_common.cuh"

namespace poros::cuda {
namespace {

/// Value and derivative of the gate function at g.
template <typename T, GateFunction function>
__device__ __forceinline__ void gate_at(float g, float& value, float& slope) {
  if constexpr (function == GateFunction::silu) {
    const float s = sigmoid_for<T>(g);
    value = g * s;
    slope = s * (1.0F + g * (1.0F - s));
  } else {
    // (1 + tanh u) / 2 = sigmoid(2u), which cancels nothing for very negative u.
    constexpr float kTwiceSqrt2OverPi = 1.5957691216057308F;
    constexpr float kCubic = 0.044715F;
    const float s = sigmoid_for<T>(kTwiceSqrt2OverPi * (g + kCubic * g * g * g));
    value = g * s;
    slope = s + g * s * (1.0F - s) * kTwiceSqrt2OverPi * (1.0F + 3.0F * kCubic * g * g);
  }
}

template <typename T, GateFunction function>
struct Forward {
  GatedForward op;  // strides resolved

  template <int V>
  __device__ void at(std::int64_t row, std::int64_t c) const {
    const auto gate = load_pack<V>(static_cast<const T*>(op.gate) + row * op.gate_stride + c);
    const auto up = load_pack<V>(static_cast<const T*>(op.up) + row * op.up_stride + c);
    Pack<T, V> y;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      float value;
      float slope;
      gate_at<T, function>(value_of(gate.v[i]), value, slope);
      y.v[i] = stored<T>(value * value_of(up.v[i]));
    }
    store_pack(static_cast<T*>(op.y) + row * op.y_stride + c, y);
  }
};

template <typename T, GateFunction function>
struct Backward {
  GatedBackward op;  // strides resolved

  template <int V>
  __device__ void at(std::int64_t row, std::int64_t c) const {
    const auto dy = load_pack<V>(static_cast<const T*>(op.dy) + row * op.dy_stride + c);
    const auto gate = load_pack<V>(static_cast<const T*>(op.gate) + row * op.gate_stride + c);
    const auto up = load_pack<V>(static_cast<const T*>(op.up) + row * op.up_stride + c);
    Pack<T, V> dgate;
    Pack<T, V> dup;
    Pack<T, V> y;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float gradient = value_of(dy.v[i]);
      const float u = value_of(up.v[i]);
      float value;
      float slope;
      gate_at<T, function>(value_of(gate.v[i]), value, slope);
      dgate.v[i] = stored<T>(gradient * u * slope);
      dup.v[i] = stored<T>(gradient * value);
      y.v[i] = stored<T>(value * u);
    }
    store_pack(static_cast<T*>(op.dgate) + row * op.gate_stride + c, dgate);
    store_pack(static_cast<T*>(op.dup) + row * op.up_stride + c, dup);
    if (op.y != nullptr) store_pack(static_cast<T*>(op.y) + row * op.dy_stride + c, y);
  }
};

template <template <typename, GateFunction> typename Body, typename Op>
void launch(const char* name, const Stream& stream, Op op, bool wide) {
  const std::int64_t rows = op.rows;
  const std::int64_t cols = op.cols;
  const bool silu = op.function == GateFunction::silu;
  if (op.dtype == DType::f32) {
    silu ? map_rows(name, stream, Body<float, GateFunction::silu>{op}, rows, cols, wide)
         : map_rows(name, stream, Body<float, GateFunction::gelu_tanh>{op}, rows, cols, wide);
  } else {
    silu ? map_rows(name, stream, Body<Bf, GateFunction::silu>{op}, rows, cols, wide)
         : map_rows(name, stream, Body<Bf, GateFunction::gelu_tanh>{op}, rows, cols, wide);
  }
}

}  // namespace

void gated_activation_forward(const Stream& stream, const GatedForward& given) {
  GatedForward op = given;
  op.gate_stride = stride_or(op.gate_stride, op.cols);
  op.up_stride = stride_or(op.up_stride, op.cols);
  op.y_stride = stride_or(op.y_stride, op.cols);
  const bool wide = aligned({op.gate, op.up, op.y}) &&
                    multiples(8, {op.cols, op.gate_stride, op.up_stride, op.y_stride});
  launch<Forward>("gated_activation_forward", stream, op, wide);
}

void gated_activation_backward(const Stream& stream, const GatedBackward& given) {
  GatedBackward op = given;
  op.dy_stride = stride_or(op.dy_stride, op.cols);
  op.gate_stride = stride_or(op.gate_stride, op.cols);
  op.up_stride = stride_or(op.up_stride, op.cols);
  const bool wide = aligned({op.dy, op.gate, op.up, op.dgate, op.dup, op.y}) &&
                    multiples(8, {op.cols, op.dy_stride, op.gate_stride, op.up_stride});
  launch<Backward>("gated_activation_backward", stream, op, wide);
}

}  // namespace poros::cuda
