// SPDX-License-Identifier: Apache-2.0
// A thread turns V pairs of one head. cos and sin tables stay in the L2 cache.
#include "kernels/cuda_backend.hpp"
#include "kernels/cuda_common.cuh"

namespace poros::cuda {
namespace {

/// Columns count the pairs of all heads of a row: heads * rotary_dim/2.
template <typename T>
struct Rotate {
  Rotary op;
  std::int64_t stride, source_stride;
  int half;
  float direction;

  template <int V>
  __device__ void at(std::int64_t row, std::int64_t column) const {
    const auto pair = static_cast<int>(column);
    const int head = pair / half;
    const int i = pair - head * half;
    T* first = static_cast<T*>(op.x) + row * stride + head * op.head_dim + i;
    T* second = first + half;
    const T* from = static_cast<const T*>(op.source) + row * source_stride + head * op.head_dim + i;
    Pack<T, V> a = load_pack<V>(from);
    Pack<T, V> b = load_pack<V>(from + half);
    const std::int64_t position = op.positions[row];
    const bool inside = position >= 0 && position < op.table_positions;
    Pack<float, V> cos{};
    Pack<float, V> sin{};
    if (inside) {
      cos = load_pack<V>(op.cos + position * half + i);
      sin = load_pack<V>(op.sin + position * half + i);
    }
#pragma unroll
    for (int k = 0; k < V; ++k) {
      const float c = inside ? cos.v[k] : __int_as_float(0x7FFFFFFF);  // NaN: it must show
      const float s = sin.v[k] * direction;
      const float x = value_of(a.v[k]);
      const float y = value_of(b.v[k]);
      a.v[k] = stored<T>(x * c - y * s);
      b.v[k] = stored<T>(y * c + x * s);
    }
    store_pack(first, a);
    store_pack(second, b);
  }
};

void rotate(const char* name, const Stream& stream, const Rotary& given, float direction) {
  Rotary op = given;
  const auto half = static_cast<int>(op.rotary_dim / 2);
  const std::int64_t stride = stride_or(op.row_stride, op.heads * op.head_dim);
  std::int64_t from = stride_or(op.source_stride, op.heads * op.head_dim);
  if (op.source == nullptr) {
    op.source = op.x;
    from = stride;
  }
  const bool wide =
      aligned({op.x, op.source, op.cos, op.sin}) && multiples(8, {half, op.head_dim, stride, from});
  if (op.dtype == DType::f32) {
    map_rows(name, stream, Rotate<float>{op, stride, from, half, direction}, op.rows,
             op.heads * half, wide);
  } else {
    map_rows(name, stream, Rotate<Bf>{op, stride, from, half, direction}, op.rows, op.heads * half,
             wide);
  }
}

}  // namespace

void rotary_forward(const Stream& stream, const Rotary& op) {
  rotate("rotary_forward", stream, op, 1.0F);
}
void rotary_backward(const Stream& stream, const Rotary& op) {
  rotate("rotary_backward", stream, op, -1.0F);
}

}  // namespace poros::cuda
