// SPDX-License-Identifier: Apache-2.0
#include "kernels/elementwise.hpp"

#include "kernels/checks.hpp"

namespace poros {

void copy_rows(const Stream& stream, const CopyRows& op) {
  const char* name = "copy_rows";
  require(name, op.rows >= 0 && op.cols >= 0, "negative size");
  require_stride(name, op.x_stride, op.cols);
  require_stride(name, op.y_stride, op.cols);
  if (op.rows == 0 || op.cols == 0) return;
  require(name, op.x != nullptr && op.y != nullptr, "null operand");
  dispatch<const CopyRows&>(name, stream, cpu::copy_rows, cuda_kernels().copy_rows, op);
}

void cast(const Stream& stream, const void* x, DType x_dtype, void* y, DType y_dtype,
          std::int64_t count) {
  // Rows of a handy width, then the rest as one short row.
  constexpr std::int64_t kWidth = 4096;
  const std::int64_t whole = count / kWidth * kWidth;
  copy_rows(stream, {.x = x,
                     .y = y,
                     .rows = count / kWidth,
                     .cols = kWidth,
                     .x_dtype = x_dtype,
                     .y_dtype = y_dtype});
  if (whole == count) return;
  const auto at = static_cast<std::size_t>(whole);
  copy_rows(stream, {.x = static_cast<const std::byte*>(x) + at * bytes_of(x_dtype),
                     .y = static_cast<std::byte*>(y) + at * bytes_of(y_dtype),
                     .rows = 1,
                     .cols = count - whole,
                     .x_dtype = x_dtype,
                     .y_dtype = y_dtype});
}

void add_rows(const Stream& stream, const AddRows& op) {
  const char* name = "add_rows";
  require_activation(name, op.a_dtype);
  require_activation(name, op.b_dtype);
  require_activation(name, op.y_dtype);
  require(name, op.rows >= 0 && op.cols >= 0, "negative size");
  require_stride(name, op.a_stride, op.cols);
  require_stride(name, op.b_stride, op.cols);
  require_stride(name, op.y_stride, op.cols);
  if (op.rows == 0 || op.cols == 0) return;
  require(name, op.a != nullptr && op.b != nullptr && op.y != nullptr, "null operand");
  dispatch<const AddRows&>(name, stream, cpu::add_rows, cuda_kernels().add_rows, op);
}

void add_bias(const Stream& stream, const AddBias& op) {
  const char* name = "add_bias";
  require_activation(name, op.dtype);
  require(name, op.rows >= 0 && op.cols >= 0, "negative size");
  require_stride(name, op.x_stride, op.cols);
  if (op.rows == 0 || op.cols == 0) return;
  require(name, op.x != nullptr && op.bias != nullptr, "null operand");
  dispatch<const AddBias&>(name, stream, cpu::add_bias, cuda_kernels().add_bias, op);
}

void scale_rows(const Stream& stream, const ScaleRows& op) {
  const char* name = "scale_rows";
  require_activation(name, op.dtype);
  require(name, op.rows >= 0 && op.cols >= 0, "negative size");
  require_stride(name, op.x_stride, op.cols);
  require_stride(name, op.y_stride, op.cols);
  if (op.rows == 0 || op.cols == 0) return;
  require(name, op.x != nullptr && op.y != nullptr, "null operand");
  dispatch<const ScaleRows&>(name, stream, cpu::scale_rows, cuda_kernels().scale_rows, op);
}

void gather_rows(const Stream& stream, const GatherRows& op) {
  const char* name = "gather_rows";
  require_activation(name, op.y_dtype);
  require(name, op.rows >= 0 && op.cols >= 0 && op.source_rows >= 0, "negative size");
  require_stride(name, op.source_stride, op.cols);
  require_stride(name, op.y_stride, op.cols);
  if (op.rows == 0 || op.cols == 0) return;
  require(name, op.source != nullptr && op.y != nullptr, "null operand");
  require(name, op.index != nullptr || op.rows <= op.source_rows, "more rows than the source has");
  if (stream.device == DeviceKind::cpu && op.index != nullptr) {
    for (std::int64_t row = 0; row < op.rows; ++row) {
      if (op.index[row] < 0 && op.negative_is_zero) continue;
      if (op.index[row] < 0 || op.index[row] >= op.source_rows) {
        fail(Fault::run, "kernel {}: index {} of row {} is outside the source's {} rows", name,
             op.index[row], row, op.source_rows);
      }
    }
  }
  dispatch<const GatherRows&>(name, stream, cpu::gather_rows, cuda_kernels().gather_rows, op);
}

void group_sum(const Stream& stream, const GroupSum& op) {
  const char* name = "group_sum";
  require_activation(name, op.x_dtype);
  require_activation(name, op.y_dtype);
  require(name, op.rows >= 0 && op.kv_heads > 0 && op.group > 0 && op.head_dim > 0,
          "size out of range");
  require_stride(name, op.x_stride, op.kv_heads * op.group * op.head_dim);
  require_stride(name, op.y_stride, op.kv_heads * op.head_dim);
  if (op.rows == 0) return;
  require(name, op.x != nullptr && op.y != nullptr, "null operand");
  dispatch<const GroupSum&>(name, stream, cpu::group_sum, cuda_kernels().group_sum, op);
}

}  // namespace poros
