// SPDX-License-Identifier: Apache-2.0
#include "kernels/backends.hpp"
#include "kernels/cpu_convert.hpp"
#include "kernels/parallel.hpp"

namespace poros::cpu {
namespace {

constexpr float kSqrt2OverPi = 0.7978845608028654F;
constexpr float kCubic = 0.044715F;

struct Silu {
  /// Value and derivative at g.
  static POROS_KERNEL_INLINE void at(float g, float& value, float& slope) {
    const float s = sigmoid_f32(g);
    value = g * s;
    slope = s * (1.0F + g * (1.0F - s));
  }
};

struct GeluTanh {
  static POROS_KERNEL_INLINE void at(float g, float& value, float& slope) {
    const float t = tanh_f32(kSqrt2OverPi * (g + kCubic * g * g * g));
    value = 0.5F * g * (1.0F + t);
    slope = 0.5F * (1.0F + t) +
            0.5F * g * (1.0F - t * t) * (kSqrt2OverPi * (1.0F + 3.0F * kCubic * g * g));
  }
};

template <typename T, typename Function>
POROS_KERNEL_INLINE void forward_rows(const GatedForward& op, std::int64_t begin,
                                      std::int64_t end) {
  const std::int64_t gate_stride = op.gate_stride != 0 ? op.gate_stride : op.cols;
  const std::int64_t up_stride = op.up_stride != 0 ? op.up_stride : op.cols;
  const std::int64_t y_stride = op.y_stride != 0 ? op.y_stride : op.cols;
  for (std::int64_t row = begin; row < end; ++row) {
    const T* gate = row_of<T>(op.gate, row * gate_stride);
    const T* up = row_of<T>(op.up, row * up_stride);
    T* y = row_of<T>(op.y, row * y_stride);
#pragma GCC ivdep
    for (std::int64_t c = 0; c < op.cols; ++c) {
      float value = 0;
      float slope = 0;
      Function::at(to_float(gate[c]), value, slope);
      y[c] = from_float<T>(value * to_float(up[c]));
    }
  }
}

template <typename T, typename Function, bool with_y>
POROS_KERNEL_INLINE void backward_rows(const GatedBackward& op, std::int64_t begin,
                                       std::int64_t end) {
  const std::int64_t dy_stride = op.dy_stride != 0 ? op.dy_stride : op.cols;
  const std::int64_t gate_stride = op.gate_stride != 0 ? op.gate_stride : op.cols;
  const std::int64_t up_stride = op.up_stride != 0 ? op.up_stride : op.cols;
  for (std::int64_t row = begin; row < end; ++row) {
    const T* dy = row_of<T>(op.dy, row * dy_stride);
    const T* gate = row_of<T>(op.gate, row * gate_stride);
    const T* up = row_of<T>(op.up, row * up_stride);
    T* dgate = row_of<T>(op.dgate, row * gate_stride);
    T* dup = row_of<T>(op.dup, row * up_stride);
    T* y = with_y ? row_of<T>(op.y, row * dy_stride) : nullptr;
#pragma GCC ivdep
    for (std::int64_t c = 0; c < op.cols; ++c) {
      const float gradient = to_float(dy[c]);
      const float u = to_float(up[c]);
      float value = 0;
      float slope = 0;
      Function::at(to_float(gate[c]), value, slope);
      dgate[c] = from_float<T>(gradient * u * slope);
      dup[c] = from_float<T>(gradient * value);
      if constexpr (with_y) y[c] = from_float<T>(value * u);
    }
  }
}

template <typename T, typename Function>
POROS_KERNEL_INLINE void backward_either(const GatedBackward& op, std::int64_t begin,
                                         std::int64_t end) {
  if (op.y != nullptr) {
    backward_rows<T, Function, true>(op, begin, end);
  } else {
    backward_rows<T, Function, false>(op, begin, end);
  }
}

POROS_KERNEL_CLONES void forward_f32(const GatedForward& op, std::int64_t begin, std::int64_t end) {
  if (op.function == GateFunction::silu) {
    forward_rows<float, Silu>(op, begin, end);
  } else {
    forward_rows<float, GeluTanh>(op, begin, end);
  }
}
POROS_KERNEL_CLONES void forward_bf16(const GatedForward& op, std::int64_t begin,
                                      std::int64_t end) {
  if (op.function == GateFunction::silu) {
    forward_rows<Bf16, Silu>(op, begin, end);
  } else {
    forward_rows<Bf16, GeluTanh>(op, begin, end);
  }
}
POROS_KERNEL_CLONES void backward_f32(const GatedBackward& op, std::int64_t begin,
                                      std::int64_t end) {
  if (op.function == GateFunction::silu) {
    backward_either<float, Silu>(op, begin, end);
  } else {
    backward_either<float, GeluTanh>(op, begin, end);
  }
}
POROS_KERNEL_CLONES void backward_bf16(const GatedBackward& op, std::int64_t begin,
                                       std::int64_t end) {
  if (op.function == GateFunction::silu) {
    backward_either<Bf16, Silu>(op, begin, end);
  } else {
    backward_either<Bf16, GeluTanh>(op, begin, end);
  }
}

}  // namespace

void gated_activation_forward(const Stream& stream, const GatedForward& op) {
  const auto rows = op.dtype == DType::f32 ? forward_f32 : forward_bf16;
  parallel_for(stream.threads, op.rows, row_grain(4 * op.cols),
               [&](std::int64_t begin, std::int64_t end) { rows(op, begin, end); });
}

void gated_activation_backward(const Stream& stream, const GatedBackward& op) {
  const auto rows = op.dtype == DType::f32 ? backward_f32 : backward_bf16;
  parallel_for(stream.threads, op.rows, row_grain(4 * op.cols),
               [&](std::int64_t begin, std::int64_t end) { rows(op, begin, end); });
}

}  // namespace poros::cpu
