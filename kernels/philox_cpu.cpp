// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/backends.hpp"
#include "kernels/cpu_convert.hpp"
#include "kernels/parallel.hpp"
#include "kernels/philox_rounds.hpp"

namespace poros::cpu {
namespace {

constexpr std::int64_t kTileCounters = 64;  // counters whose words are made at a time

template <typename T>
POROS_KERNEL_INLINE void dropout_rows(const Dropout& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t x_stride = op.x_stride != 0 ? op.x_stride : op.cols;
  const std::int64_t y_stride = op.y_stride != 0 ? op.y_stride : op.cols;
  const std::uint32_t threshold = dropout_threshold(op.p);
  const auto scale = static_cast<float>(1.0 / (1.0 - static_cast<double>(op.p)));
  const auto key0 = static_cast<std::uint32_t>(op.seed);
  const auto key1 = static_cast<std::uint32_t>(op.seed >> 32);
  for (std::int64_t row = begin; row < end; ++row) {
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
    const T* x = row_of<T>(op.x, row * x_stride);
    T* y = row_of<T>(op.y, row * y_stride);
    for (std::int64_t tile = 0; tile < op.cols; tile += 4 * kTileCounters) {
      std::uint32_t words[4 * kTileCounters];
      for (std::int64_t i = 0; i < kTileCounters; ++i) {
        auto c0 = static_cast<std::uint32_t>(tile / 4 + i);
        std::uint32_t c1 = row_in_batch;
        std::uint32_t c2 = op.step;
        std::uint32_t c3 = place;
        philox_rounds(c0, c1, c2, c3, key0, key1);
        words[4 * i] = c0;
        words[4 * i + 1] = c1;
        words[4 * i + 2] = c2;
        words[4 * i + 3] = c3;
      }
      const std::int64_t count = std::min<std::int64_t>(4 * kTileCounters, op.cols - tile);
      if (op.accumulate) {
#pragma GCC ivdep
        for (std::int64_t c = 0; c < count; ++c) {
          const float kept = words[c] >= threshold ? to_float(x[tile + c]) * scale : 0.0F;
          y[tile + c] = from_float<T>(to_float(y[tile + c]) + kept);
        }
      } else {
#pragma GCC ivdep
        for (std::int64_t c = 0; c < count; ++c) {
          const float kept = words[c] >= threshold ? to_float(x[tile + c]) * scale : 0.0F;
          y[tile + c] = from_float<T>(kept);
        }
      }
    }
  }
}

POROS_KERNEL_CLONES void dropout_f32(const Dropout& op, std::int64_t begin, std::int64_t end) {
  dropout_rows<float>(op, begin, end);
}
POROS_KERNEL_CLONES void dropout_bf16(const Dropout& op, std::int64_t begin, std::int64_t end) {
  dropout_rows<Bf16>(op, begin, end);
}

}  // namespace

void dropout(const Stream& stream, const Dropout& op) {
  const auto rows = op.dtype == DType::f32 ? dropout_f32 : dropout_bf16;
  parallel_for(stream.threads, op.rows, row_grain(4 * op.cols),
               [&](std::int64_t begin, std::int64_t end) { rows(op, begin, end); });
}

}  // namespace poros::cpu
