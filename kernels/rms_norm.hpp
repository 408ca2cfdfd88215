// SPDX-License-Identifier: Apache-2.0
// RMSNorm (Zhang and Sennrich 2019), with the residual addition before it fused in.
// A row may hold several groups that are normalised each on its own (q/k norm over head_dim).
#pragma once

#include <cstdint>

#include "kernels/device.hpp"
#include "kernels/dtype.hpp"

namespace poros {

/// How the weight enters, in each family's order of casts.
enum class NormWeight : std::uint8_t {
  plain,     // LLaMA, Qwen, Mistral: y = w * round(r * rstd)
  plus_one,  // Gemma: y = round(r * rstd * (1 + w))
};

/// r = residual ? round(x + residual) : x;  rstd = (mean(r^2) + eps)^-1/2;  y as NormWeight says.
/// "round" is to `dtype`; the norm reads the rounded r, so that storing r at a block's edge and
/// reading it back changes no bit. Element c of group g of row i lies at
/// base + i*row_stride + g*cols + c; a stride of 0 means groups*cols (contiguous).
struct RmsNormForward {
  const void* x = nullptr;
  const void* residual = nullptr;  // strided as x; or null
  void* residual_out = nullptr;    // r, strided as x; may be x or residual; null: not stored
  const void* weight = nullptr;    // [cols]
  void* y = nullptr;               // may be x
  float* rstd = nullptr;           // [rows, groups]; null: not stored
  std::int64_t rows = 0, cols = 0;
  std::int64_t groups = 1;
  std::int64_t x_stride = 0, y_stride = 0;  // elements from row to row
  DType dtype = DType::f32;                 // of x, residual, residual_out, y: f32 or bf16
  DType weight_dtype = DType::f32;          // f32, bf16 or f16
  NormWeight weight_kind = NormWeight::plain;
  float eps = 1e-6F;
};
void rms_norm_forward(const Stream& stream, const RmsNormForward& op);

/// g = dy * w (or dy * (1 + w));  dr = rstd * (g - r * rstd^2 * mean(g * r));
/// dx = round(dr + residual_gradient). The weight is frozen: it gets no gradient.
struct RmsNormBackward {
  const void* dy = nullptr;      // strided by dy_stride
  const void* r = nullptr;       // what the norm read (residual_out, or x); r_stride
  const void* weight = nullptr;  // [cols]
  const float* rstd = nullptr;   // [rows, groups], from the forward
  const void* residual_gradient =
      nullptr;         // gradient that reaches r past the norm; dx_stride; or null
  void* dx = nullptr;  // may be dy, r or residual_gradient (equal strides)
  std::int64_t rows = 0, cols = 0;
  std::int64_t groups = 1;
  std::int64_t dy_stride = 0, r_stride = 0, dx_stride = 0;
  DType dtype = DType::f32;  // of dy, r, residual_gradient, dx: f32 or bf16
  DType weight_dtype = DType::f32;
  NormWeight weight_kind = NormWeight::plain;
};
void rms_norm_backward(const Stream& stream, const RmsNormBackward& op);

}  // namespace poros
