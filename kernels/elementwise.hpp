// SPDX-License-Identifier: Apache-2.0
// Small row-wise operations. Strides are elements from row to row; 0 means contiguous. Arithmetic
// is fp32, rounded once to the output's dtype. dtypes are f32 or bf16 unless said otherwise.
#pragma once

#include <cstdint>

#include "kernels/device.hpp"
#include "kernels/dtype.hpp"

namespace poros {

/// y = x, [rows, cols], converted where dtypes differ (f32, bf16, f16 in any pair). Splits and
/// joins fused q, k, v by strides. x and y may be equal only when nothing moves or changes.
struct CopyRows {
  const void* x = nullptr;
  void* y = nullptr;
  std::int64_t rows = 0, cols = 0, x_stride = 0, y_stride = 0;
  DType x_dtype = DType::f32, y_dtype = DType::f32;
};
void copy_rows(const Stream& stream, const CopyRows& op);

/// y = x of `count` elements, converted.
void cast(const Stream& stream, const void* x, DType x_dtype, void* y, DType y_dtype,
          std::int64_t count);

/// y = a + factor * b, [rows, cols]. y may be a or b (equal dtype and stride): accumulation.
struct AddRows {
  const void* a = nullptr;
  const void* b = nullptr;
  void* y = nullptr;
  std::int64_t rows = 0, cols = 0, a_stride = 0, b_stride = 0, y_stride = 0;
  DType a_dtype = DType::f32, b_dtype = DType::f32, y_dtype = DType::f32;
  float factor = 1.0F;
};
void add_rows(const Stream& stream, const AddRows& op);

/// x = x + bias[column], in place.
struct AddBias {
  void* x = nullptr;
  const void* bias = nullptr;  // [cols]
  std::int64_t rows = 0, cols = 0, x_stride = 0;
  DType dtype = DType::f32;
  DType bias_dtype = DType::f32;  // f32, bf16 or f16
};
void add_bias(const Stream& stream, const AddBias& op);

/// y = x * factor * (row_factor ? row_factor[row] : 1). y may be x.
struct ScaleRows {
  const void* x = nullptr;
  void* y = nullptr;
  const float* row_factor = nullptr;  // [rows], or null
  std::int64_t rows = 0, cols = 0, x_stride = 0, y_stride = 0;
  DType dtype = DType::f32;
  float factor = 1.0F;
};
void scale_rows(const Stream& stream, const ScaleRows& op);

/// y[r] = round(source[index[r]]) * factor: rows of an embedding, or tokens of an expert. The
/// product is rounded again (HF casts the row first, then scales). index null: y[r] from source[r].
/// With `negative_is_zero` a negative index gives a row of zeros (rows that only pad an expert's).
struct GatherRows {
  const void* source = nullptr;         // [source_rows, cols]: f32, bf16 or f16
  const std::int32_t* index = nullptr;  // [rows], 0 <= index < source_rows
  void* y = nullptr;                    // [rows, cols]
  std::int64_t rows = 0, cols = 0, source_rows = 0;
  std::int64_t source_stride = 0, y_stride = 0;
  DType source_dtype = DType::f32, y_dtype = DType::f32;
  float factor = 1.0F;
  bool negative_is_zero = false;
};
/// An index outside the source throws on the CPU; on CUDA the row becomes NaN.
void gather_rows(const Stream& stream, const GatherRows& op);

/// y[r, k, d] = sum over the `group` heads h = k*group .. k*group+group-1 of x[r, h, d], in
/// ascending order: the gradient of key/value heads that served several query heads.
struct GroupSum {
  const void* x = nullptr;  // [rows, kv_heads*group, head_dim]
  void* y = nullptr;        // [rows, kv_heads, head_dim]
  std::int64_t rows = 0, kv_heads = 0, group = 0, head_dim = 0;
  std::int64_t x_stride = 0, y_stride = 0;
  DType x_dtype = DType::f32, y_dtype = DType::f32;
};
void group_sum(const Stream& stream, const GroupSum& op);

}  // namespace poros
