// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "kernels/backends.hpp"
#include "kernels/cpu_convert.hpp"
#include "kernels/parallel.hpp"

namespace poros::cpu {
namespace {

/// Calls visit(T{}) with the storage type of `dtype`.
template <typename Visit>
POROS_KERNEL_INLINE void with_type(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::f32:
      visit(float{});
      return;
    case DType::bf16:
      visit(Bf16{});
      return;
    case DType::f16:
      visit(F16{});
      return;
  }
}

template <typename X, typename Y>
void convert(const void* x, void* y, std::int64_t count) {
  const X* from = row_of<X>(x, 0);
  Y* to = row_of<Y>(y, 0);
#pragma GCC ivdep
  for (std::int64_t c = 0; c < count; ++c) to[c] = from_float<Y>(to_float(from[c]));
}

using Convert = void (*)(const void*, void*, std::int64_t);

Convert converter(DType x_dtype, DType y_dtype) {
  Convert chosen = nullptr;
  with_type(x_dtype, [&](auto x) {
    with_type(y_dtype, [&](auto y) { chosen = convert<decltype(x), decltype(y)>; });
  });
  return chosen;
}

const std::byte* element(const void* base, DType dtype, std::int64_t index) {
  return static_cast<const std::byte*>(base) + index * static_cast<std::int64_t>(bytes_of(dtype));
}
std::byte* element(void* base, DType dtype, std::int64_t index) {
  return static_cast<std::byte*>(base) + index * static_cast<std::int64_t>(bytes_of(dtype));
}

template <typename A, typename B, typename Y>
void add_range(const AddRows& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t a_stride = stride_or(op.a_stride, op.cols);
  const std::int64_t b_stride = stride_or(op.b_stride, op.cols);
  const std::int64_t y_stride = stride_or(op.y_stride, op.cols);
  for (std::int64_t row = begin; row < end; ++row) {
    const A* a = row_of<A>(op.a, row * a_stride);
    const B* b = row_of<B>(op.b, row * b_stride);
    Y* y = row_of<Y>(op.y, row * y_stride);
#pragma GCC ivdep
    for (std::int64_t c = 0; c < op.cols; ++c) {
      y[c] = from_float<Y>(to_float(a[c]) + op.factor * to_float(b[c]));
    }
  }
}

/// Calls visit(float{}) or visit(Bf16{}): the dtypes of activations.
template <typename Visit>
void with_activation(DType dtype, const Visit& visit) {
  if (dtype == DType::f32) {
    visit(float{});
  } else {
    visit(Bf16{});
  }
}

}  // namespace

void copy_rows(const Stream& stream, const CopyRows& op) {
  const std::int64_t x_stride = stride_or(op.x_stride, op.cols);
  const std::int64_t y_stride = stride_or(op.y_stride, op.cols);
  const Convert chosen = converter(op.x_dtype, op.y_dtype);
  parallel_for(stream.threads, op.rows, row_grain(op.cols),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t row = begin; row < end; ++row) {
                   const std::byte* x = element(op.x, op.x_dtype, row * x_stride);
                   std::byte* y = element(op.y, op.y_dtype, row * y_stride);
                   if (op.x_dtype == op.y_dtype) {  // bits as they are, NaN payloads too
                     std::memmove(y, x, static_cast<std::size_t>(op.cols) * bytes_of(op.x_dtype));
                   } else {
                     chosen(x, y, op.cols);
                   }
                 }
               });
}

void add_rows(const Stream& stream, const AddRows& op) {
  with_activation(op.a_dtype, [&](auto a) {
    with_activation(op.b_dtype, [&](auto b) {
      with_activation(op.y_dtype, [&](auto y) {
        parallel_for(stream.threads, op.rows, row_grain(op.cols),
                     [&](std::int64_t begin, std::int64_t end) {
                       add_range<decltype(a), decltype(b), decltype(y)>(op, begin, end);
                     });
      });
    });
  });
}

void add_bias(const Stream& stream, const AddBias& op) {
  const std::vector<float> bias = as_floats(op.bias, op.bias_dtype, op.cols);
  const std::int64_t stride = stride_or(op.x_stride, op.cols);
  with_activation(op.dtype, [&](auto type) {
    using T = decltype(type);
    parallel_for(stream.threads, op.rows, row_grain(op.cols),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t row = begin; row < end; ++row) {
                     T* x = row_of<T>(op.x, row * stride);
                     const float* b = bias.data();
#pragma GCC ivdep
                     for (std::int64_t c = 0; c < op.cols; ++c) {
                       x[c] = from_float<T>(to_float(x[c]) + b[c]);
                     }
                   }
                 });
  });
}

void scale_rows(const Stream& stream, const ScaleRows& op) {
  const std::int64_t x_stride = stride_or(op.x_stride, op.cols);
  const std::int64_t y_stride = stride_or(op.y_stride, op.cols);
  with_activation(op.dtype, [&](auto type) {
    using T = decltype(type);
    parallel_for(stream.threads, op.rows, row_grain(op.cols),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t row = begin; row < end; ++row) {
                     const T* x = row_of<T>(op.x, row * x_stride);
                     T* y = row_of<T>(op.y, row * y_stride);
                     const float row_factor = op.row_factor != nullptr ? op.row_factor[row] : 1.0F;
                     const float factor = op.factor * row_factor;
#pragma GCC ivdep
                     for (std::int64_t c = 0; c < op.cols; ++c) {
                       y[c] = from_float<T>(to_float(x[c]) * factor);
                     }
                   }
                 });
  });
}

void gather_rows(const Stream& stream, const GatherRows& op) {
  const std::int64_t source_stride = stride_or(op.source_stride, op.cols);
  const std::int64_t y_stride = stride_or(op.y_stride, op.cols);
  const Convert chosen = converter(op.source_dtype, op.y_dtype);
  with_activation(op.y_dtype, [&](auto type) {
    using T = decltype(type);
    parallel_for(stream.threads, op.rows, row_grain(op.cols),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t row = begin; row < end; ++row) {
                     const std::int64_t from = op.index != nullptr ? op.index[row] : row;
                     T* y = row_of<T>(op.y, row * y_stride);
                     if (from < 0) {  // only with negative_is_zero
                       std::fill(y, y + op.cols, from_float<T>(0.0F));
                       continue;
                     }
                     chosen(element(op.source, op.source_dtype, from * source_stride), y, op.cols);
                     if (op.factor == 1.0F) continue;
                     for (std::int64_t c = 0; c < op.cols; ++c) {
                       y[c] = from_float<T>(to_float(y[c]) * op.factor);
                     }
                   }
                 });
  });
}

void group_sum(const Stream& stream, const GroupSum& op) {
  const std::int64_t x_stride = stride_or(op.x_stride, op.kv_heads * op.group * op.head_dim);
  const std::int64_t y_stride = stride_or(op.y_stride, op.kv_heads * op.head_dim);
  with_activation(op.x_dtype, [&](auto x_type) {
    with_activation(op.y_dtype, [&](auto y_type) {
      using X = decltype(x_type);
      using Y = decltype(y_type);
      parallel_for(stream.threads, op.rows, row_grain(op.kv_heads * op.group * op.head_dim),
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t row = begin; row < end; ++row) {
                       for (std::int64_t head = 0; head < op.kv_heads; ++head) {
                         const X* x =
                             row_of<X>(op.x, row * x_stride + head * op.group * op.head_dim);
                         Y* y = row_of<Y>(op.y, row * y_stride + head * op.head_dim);
                         for (std::int64_t d = 0; d < op.head_dim; ++d) {
                           float sum = to_float(x[d]);
                           for (std::int64_t g = 1; g < op.group; ++g) {
                             sum += to_float(x[g * op.head_dim + d]);
                           }
                           y[d] = from_float<Y>(sum);
                         }
                       }
                     }
                   });
    });
  });
}

}  // namespace poros::cpu
