// SPDX-License-Identifier: Apache-2.0
#include "kernels/rms_norm.hpp"

#include "kernels/checks.hpp"

namespace poros {

void rms_norm_forward(const Stream& stream, const RmsNormForward& op) {
  const char* name = "rms_norm_forward";
  require_activation(name, op.dtype);
  require(name, op.rows >= 0 && op.cols > 0 && op.groups > 0, "rows, cols or groups out of range");
  require_stride(name, op.x_stride, op.groups * op.cols);
  require_stride(name, op.y_stride, op.groups * op.cols);
  if (op.rows == 0) return;
  require(name, op.x != nullptr && op.weight != nullptr && op.y != nullptr, "null operand");
  require(name, op.residual == nullptr || op.residual_out != nullptr,
          "a residual needs residual_out");
  dispatch<const RmsNormForward&>(name, stream, cpu::rms_norm_forward,
                                  cuda_kernels().rms_norm_forward, op);
}

void rms_norm_backward(const Stream& stream, const RmsNormBackward& op) {
  const char* name = "rms_norm_backward";
  require_activation(name, op.dtype);
  require(name, op.rows >= 0 && op.cols > 0 && op.groups > 0, "rows, cols or groups out of range");
  require_stride(name, op.dy_stride, op.groups * op.cols);
  require_stride(name, op.r_stride, op.groups * op.cols);
  require_stride(name, op.dx_stride, op.groups * op.cols);
  if (op.rows == 0) return;
  require(name,
          op.dy != nullptr && op.r != nullptr && op.weight != nullptr && op.rstd != nullptr &&
              op.dx != nullptr,
          "null operand");
  dispatch<const RmsNormBackward&>(name, stream, cpu::rms_norm_backward,
                                   cuda_kernels().rms_norm_backward, op);
}

}  // namespace poros
