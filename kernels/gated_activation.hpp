// SPDX-License-Identifier: Apache-2.0
// The gated unit of a decoder's MLP: act(gate) * up (SwiGLU, GeGLU).
#pragma once

#include <cstdint>

#include "kernels/device.hpp"
#include "kernels/dtype.hpp"

namespace poros {

enum class GateFunction : std::uint8_t {
  silu,       // g * sigmoid(g)
  gelu_tanh,  // 0.5 g (1 + tanh(sqrt(2/pi) (g + 0.044715 g^3)))
};

/// y = round(act(gate) * up), computed in fp32. Strides are elements from row to row, 0: cols.
/// gate and up may be halves of one buffer (fused gate_up); y may be gate or up (equal strides).
struct GatedForward {
  const void* gate = nullptr;
  const void* up = nullptr;
  void* y = nullptr;
  std::int64_t rows = 0, cols = 0;
  std::int64_t gate_stride = 0, up_stride = 0, y_stride = 0;
  DType dtype = DType::f32;  // f32 or bf16
  GateFunction function = GateFunction::silu;
};
void gated_activation_forward(const Stream& stream, const GatedForward& op);

/// dgate = dy * up * act'(gate);  dup = dy * act(gate). dgate may be gate, dup may be up, y may be
/// dy (equal strides). With y given, the forward's output is made again on the way.
struct GatedBackward {
  const void* dy = nullptr;
  const void* gate = nullptr;
  const void* up = nullptr;
  void* dgate = nullptr;  // strided as gate
  void* dup = nullptr;    // strided as up
  void* y = nullptr;      // strided as dy; or null
  std::int64_t rows = 0, cols = 0;
  std::int64_t dy_stride = 0, gate_stride = 0, up_stride = 0;
  DType dtype = DType::f32;
  GateFunction function = GateFunction::silu;
};
void gated_activation_backward(const Stream& stream, const GatedBackward& op);

}  // namespace poros
