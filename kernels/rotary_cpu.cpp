// SPDX-License-Identifier: Apache-2.0
#include "kernels/backends.hpp"
#include "kernels/cpu_convert.hpp"
#include "kernels/parallel.hpp"

namespace poros::cpu {
namespace {

/// `direction` is 1 for the forward, -1 for its transpose.
template <typename T>
POROS_KERNEL_INLINE void rotate_rows(const Rotary& op, float direction, std::int64_t begin,
                                     std::int64_t end) {
  const std::int64_t half = op.rotary_dim / 2;
  const std::int64_t width = op.heads * op.head_dim;
  const std::int64_t stride = op.row_stride != 0 ? op.row_stride : width;
  const std::int64_t source_stride = op.source == nullptr    ? stride
                                     : op.source_stride != 0 ? op.source_stride
                                                             : width;
  const void* source = op.source != nullptr ? op.source : op.x;
  for (std::int64_t row = begin; row < end; ++row) {
    const float* cos = op.cos + op.positions[row] * half;
    const float* sin = op.sin + op.positions[row] * half;
    for (std::int64_t head = 0; head < op.heads; ++head) {
      T* first = row_of<T>(op.x, row * stride + head * op.head_dim);
      T* second = first + half;
      const T* from = row_of<T>(source, row * source_stride + head * op.head_dim);
#pragma GCC ivdep
      for (std::int64_t i = 0; i < half; ++i) {
        const float a = to_float(from[i]);
        const float b = to_float(from[half + i]);
        const float s = sin[i] * direction;
        first[i] = from_float<T>(a * cos[i] - b * s);
        second[i] = from_float<T>(b * cos[i] + a * s);
      }
    }
  }
}

POROS_KERNEL_CLONES void rotate_f32(const Rotary& op, float direction, std::int64_t begin,
                                    std::int64_t end) {
  rotate_rows<float>(op, direction, begin, end);
}
POROS_KERNEL_CLONES void rotate_bf16(const Rotary& op, float direction, std::int64_t begin,
                                     std::int64_t end) {
  rotate_rows<Bf16>(op, direction, begin, end);
}

void rotate(const Stream& stream, const Rotary& op, float direction) {
  const auto rows = op.dtype == DType::f32 ? rotate_f32 : rotate_bf16;
  parallel_for(stream.threads, op.rows, row_grain(op.heads * op.head_dim),
               [&](std::int64_t begin, std::int64_t end) { rows(op, direction, begin, end); });
}

}  // namespace

void rotary_forward(const Stream& stream, const Rotary& op) {
  rotate(stream, op, 1.0F);
}
void rotary_backward(const Stream& stream, const Rotary& op) {
  rotate(stream, op, -1.0F);
}

}  // namespace poros::cpu
