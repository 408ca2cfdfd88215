// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda_backend.hpp"
#include "kernels/cuda_common.cuh"

namespace poros::cuda {
namespace {

template <typename X, typename Y>
struct Copy {
  CopyRows op;  // strides resolved, as in all bodies below

  template <int V>
  __device__ void at(std::int64_t row, std::int64_t c) const {
    const auto x = load_pack<V>(static_cast<const X*>(op.x) + row * op.x_stride + c);
    Y* to = static_cast<Y*>(op.y) + row * op.y_stride + c;
    if constexpr (std::is_same_v<X, Y>) {
      store_pack(to, x);  // bits as they are
    } else {
      Pack<Y, V> y;
#pragma unroll
      for (int i = 0; i < V; ++i) y.v[i] = stored<Y>(value_of(x.v[i]));
      store_pack(to, y);
    }
  }
};

template <typename A, typename B, typename Y>
struct Add {
  AddRows op;

  template <int V>
  __device__ void at(std::int64_t row, std::int64_t c) const {
    const auto a = load_pack<V>(static_cast<const A*>(op.a) + row * op.a_stride + c);
    const auto b = load_pack<V>(static_cast<const B*>(op.b) + row * op.b_stride + c);
    Pack<Y, V> y;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      y.v[i] = stored<Y>(value_of(a.v[i]) + op.factor * value_of(b.v[i]));
    }
    store_pack(static_cast<Y*>(op.y) + row * op.y_stride + c, y);
  }
};

template <typename T>
struct Bias {
  AddBias op;

  template <int V>
  __device__ void at(std::int64_t row, std::int64_t c) const {
    T* at = static_cast<T*>(op.x) + row * op.x_stride + c;
    auto x = load_pack<V>(at);
    float bias[V];
    load_floats<V>(op.bias, op.bias_dtype, c, bias);
#pragma unroll
    for (int i = 0; i < V; ++i) x.v[i] = stored<T>(value_of(x.v[i]) + bias[i]);
    store_pack(at, x);
  }
};

template <typename T>
struct Scale {
  ScaleRows op;

  template <int V>
  __device__ void at(std::int64_t row, std::int64_t c) const {
    const float factor = op.factor * (op.row_factor != nullptr ? op.row_factor[row] : 1.0F);
    if (factor == 1.0F && op.x == op.y) return;  // most rows of an online softmax, most of the time
    auto x = load_pack<V>(static_cast<const T*>(op.x) + row * op.x_stride + c);
#pragma unroll
    for (int i = 0; i < V; ++i) x.v[i] = stored<T>(value_of(x.v[i]) * factor);
    store_pack(static_cast<T*>(op.y) + row * op.y_stride + c, x);
  }
};

template <typename Y>
struct Gather {
  GatherRows op;

  template <int V>
  __device__ void at(std::int64_t row, std::int64_t c) const {
    const std::int64_t from = op.index != nullptr ? std::int64_t{op.index[row]} : row;
    Pack<Y, V> y;
    if (from < 0 || from >= op.source_rows) {
      const bool zero = from < 0 && op.negative_is_zero;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        y.v[i] = stored<Y>(zero ? 0.0F : __int_as_float(0x7FC00000));  // NaN: it shows
      }
    } else {
      float x[V];
      load_floats<V>(op.source, op.source_dtype, from * op.source_stride + c, x);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        y.v[i] = stored<Y>(x[i]);
        if (op.factor != 1.0F) y.v[i] = stored<Y>(value_of(y.v[i]) * op.factor);
      }
    }
    store_pack(static_cast<Y*>(op.y) + row * op.y_stride + c, y);
  }
};

template <typename X, typename Y>
struct Group {
  GroupSum op;

  template <int V>
  __device__ void at(std::int64_t row, std::int64_t c) const {
    const auto head_dim = static_cast<int>(op.head_dim);
    const int head = static_cast<int>(c) / head_dim;
    const int d = static_cast<int>(c) - head * head_dim;
    const X* x = static_cast<const X*>(op.x) + row * op.x_stride + head * op.group * head_dim + d;
    float sum[V];
    const auto first = load_pack<V>(x);
#pragma unroll
    for (int i = 0; i < V; ++i) sum[i] = value_of(first.v[i]);
    for (std::int64_t g = 1; g < op.group; ++g) {
      const auto more = load_pack<V>(x + g * head_dim);
#pragma unroll
      for (int i = 0; i < V; ++i) sum[i] += value_of(more.v[i]);
    }
    Pack<Y, V> y;
#pragma unroll
    for (int i = 0; i < V; ++i) y.v[i] = stored<Y>(sum[i]);
    store_pack(static_cast<Y*>(op.y) + row * op.y_stride + c, y);
  }
};

/// Calls visit(T{}) for an activation dtype.
template <typename Visit>
void with_activation(DType dtype, const Visit& visit) {
  dtype == DType::f32 ? visit(float{}) : visit(Bf{});
}
template <typename Visit>
void with_type(DType dtype, const Visit& visit) {
  dtype == DType::f16 ? visit(Half{}) : with_activation(dtype, visit);
}

}  // namespace

void copy_rows(const Stream& stream, const CopyRows& given) {
  CopyRows op = given;
  op.x_stride = stride_or(op.x_stride, op.cols);
  op.y_stride = stride_or(op.y_stride, op.cols);
  const bool wide = aligned({op.x, op.y}) && multiples(8, {op.cols, op.x_stride, op.y_stride});
  with_type(op.x_dtype, [&](auto x) {
    with_type(op.y_dtype, [&](auto y) {
      map_rows("copy_rows", stream, Copy<decltype(x), decltype(y)>{op}, op.rows, op.cols, wide);
    });
  });
}

void add_rows(const Stream& stream, const AddRows& given) {
  AddRows op = given;
  op.a_stride = stride_or(op.a_stride, op.cols);
  op.b_stride = stride_or(op.b_stride, op.cols);
  op.y_stride = stride_or(op.y_stride, op.cols);
  const bool wide =
      aligned({op.a, op.b, op.y}) && multiples(8, {op.cols, op.a_stride, op.b_stride, op.y_stride});
  with_activation(op.a_dtype, [&](auto a) {
    with_activation(op.b_dtype, [&](auto b) {
      with_activation(op.y_dtype, [&](auto y) {
        map_rows("add_rows", stream, Add<decltype(a), decltype(b), decltype(y)>{op}, op.rows,
                 op.cols, wide);
      });
    });
  });
}

void add_bias(const Stream& stream, const AddBias& given) {
  AddBias op = given;
  op.x_stride = stride_or(op.x_stride, op.cols);
  const bool wide = aligned({op.x, op.bias}) && multiples(8, {op.cols, op.x_stride});
  with_activation(op.dtype, [&](auto x) {
    map_rows("add_bias", stream, Bias<decltype(x)>{op}, op.rows, op.cols, wide);
  });
}

void scale_rows(const Stream& stream, const ScaleRows& given) {
  ScaleRows op = given;
  op.x_stride = stride_or(op.x_stride, op.cols);
  op.y_stride = stride_or(op.y_stride, op.cols);
  const bool wide = aligned({op.x, op.y}) && multiples(8, {op.cols, op.x_stride, op.y_stride});
  with_activation(op.dtype, [&](auto x) {
    map_rows("scale_rows", stream, Scale<decltype(x)>{op}, op.rows, op.cols, wide);
  });
}

void gather_rows(const Stream& stream, const GatherRows& given) {
  GatherRows op = given;
  op.source_stride = stride_or(op.source_stride, op.cols);
  op.y_stride = stride_or(op.y_stride, op.cols);
  const bool wide =
      aligned({op.source, op.y}) && multiples(8, {op.cols, op.source_stride, op.y_stride});
  with_activation(op.y_dtype, [&](auto y) {
    map_rows("gather_rows", stream, Gather<decltype(y)>{op}, op.rows, op.cols, wide);
  });
}

void group_sum(const Stream& stream, const GroupSum& given) {
  GroupSum op = given;
  op.x_stride = stride_or(op.x_stride, op.kv_heads * op.group * op.head_dim);
  op.y_stride = stride_or(op.y_stride, op.kv_heads * op.head_dim);
  const bool wide = aligned({op.x, op.y}) && multiples(8, {op.head_dim, op.x_stride, op.y_stride});
  with_activation(op.x_dtype, [&](auto x) {
    with_activation(op.y_dtype, [&](auto y) {
      map_rows("group_sum", stream, Group<decltype(x), decltype(y)>{op}, op.rows,
               op.kv_heads * op.head_dim, wide);
    });
  });
}

}  // namespace poros::cuda
