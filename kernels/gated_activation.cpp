// SPDX-License-Identifier: Apache-2.0
#include "kernels/gated_activation.hpp"

#include "kernels/checks.hpp"

namespace poros {

void gated_activation_forward(const Stream& stream, const GatedForward& op) {
  const char* name = "gated_activation_forward";
  require_activation(name, op.dtype);
  require(name, op.rows >= 0 && op.cols > 0, "rows or cols out of range");
  require_stride(name, op.gate_stride, op.cols);
  require_stride(name, op.up_stride, op.cols);
  require_stride(name, op.y_stride, op.cols);
  if (op.rows == 0) return;
  require(name, op.gate != nullptr && op.up != nullptr && op.y != nullptr, "null operand");
  dispatch<const GatedForward&>(name, stream, cpu::gated_activation_forward,
                                cuda_kernels().gated_activation_forward, op);
}

void gated_activation_backward(const Stream& stream, const GatedBackward& op) {
  const char* name = "gated_activation_backward";
  require_activation(name, op.dtype);
  require(name, op.rows >= 0 && op.cols > 0, "rows or cols out of range");
  require_stride(name, op.dy_stride, op.cols);
  require_stride(name, op.gate_stride, op.cols);
  require_stride(name, op.up_stride, op.cols);
  if (op.rows == 0) return;
  require(name,
          op.dy != nullptr && op.gate != nullptr && op.up != nullptr && op.dgate != nullptr &&
              op.dup != nullptr,
          "null operand");
  dispatch<const GatedBackward&>(name, stream, cpu::gated_activation_backward,
                                 cuda_kernels().gated_activation_backward, op);
}

}  // namespace poros
