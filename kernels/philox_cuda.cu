// SPDX-License-Identifier: Apache-2.0
// A thread takes 8 columns (two counters), or one where the operands are not aligned.
#include "kernels/cuda_backend.hpp"
#include "kernels/cuda_common.cuh"
#include "kernels/philox_rounds.hpp"

namespace poros::cuda {
namespace {

template <typename T>
struct Drop {
  Dropout op;  // strides resolved
  std::uint32_t threshold;
  float scale;

  template <int V>
  __device__ void at(std::int64_t row, std::int64_t c) const {
    std::uint32_t micro_batch = op.first_micro_batch;
    auto row_in_batch = static_cast<std::uint32_t>(row);
    if (op.micro_batch != nullptr) {
      micro_batch = static_cast<std::uint32_t>(op.micro_batch[row]);
      row_in_batch = static_cast<std::uint32_t>(op.row_index[row]);
    } else if (op.rows_per_micro_batch != 0) {
      micro_batch += static_cast<std::uint32_t>(row / op.rows_per_micro_batch);
      row_in_batch = static_cast<std::uint32_t>(row % op.rows_per_micro_batch);
    }
    const std::uint32_t place = dropout_place(micro_batch, op.layer, op.site);
    constexpr int kCounters = V > 4 ? V / 4 : 1;
    std::uint32_t words[4 * kCounters];
#pragma unroll
    for (int i = 0; i < kCounters; ++i) {
      std::uint32_t* w = words + 4 * i;
      w[0] = static_cast<std::uint32_t>(c / 4) + i;
      w[1] = row_in_batch;
      w[2] = op.step;
      w[3] = place;
      philox_rounds(w[0], w[1], w[2], w[3], static_cast<std::uint32_t>(op.seed),
                    static_cast<std::uint32_t>(op.seed >> 32));
    }
    const auto x = load_pack<V>(static_cast<const T*>(op.x) + row * op.x_stride + c);
    T* y_at = static_cast<T*>(op.y) + row * op.y_stride + c;
    Pack<T, V> y;
    if (op.accumulate) y = load_pack<V>(y_at);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      std::uint32_t word = 0;
      if constexpr (V > 1) {
        word = words[i];
      } else {
        const auto which = static_cast<int>(c & 3);
        word = which == 0 ? words[0] : which == 1 ? words[1] : which == 2 ? words[2] : words[3];
      }
      const float kept = word >= threshold ? value_of(x.v[i]) * scale : 0.0F;
      y.v[i] = stored<T>(op.accumulate ? value_of(y.v[i]) + kept : kept);
    }
    store_pack(y_at, y);
  }
};

}  // namespace

void dropout(const Stream& stream, const Dropout& given) {
  Dropout op = given;
  op.x_stride = stride_or(op.x_stride, op.cols);
  op.y_stride = stride_or(op.y_stride, op.cols);
  const bool wide = aligned({op.x, op.y}) && multiples(8, {op.cols, op.x_stride, op.y_stride});
  const std::uint32_t threshold = dropout_threshold(op.p);
  const auto scale = static_cast<float>(1.0 / (1.0 - static_cast<double>(op.p)));
  if (op.dtype == DType::f32) {
    map_rows("dropout", stream, Drop<float>{op, threshold, scale}, op.rows, op.cols, wide);
  } else {
    map_rows("dropout", stream, Drop<Bf>{op, threshold, scale}, op.rows, op.cols, wide);
  }
}

}  // namespace poros::cuda
