// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "kernels/backends.hpp"
#include "kernels/cpu_convert.hpp"
#include "kernels/parallel.hpp"

namespace poros::cpu {
namespace {

template <typename T>
POROS_KERNEL_INLINE void forward_rows(const RmsNormForward& op, const float* weight,
                                      std::int64_t begin, std::int64_t end) {
  const std::int64_t width = op.groups * op.cols;
  const std::int64_t x_stride = op.x_stride != 0 ? op.x_stride : width;
  const std::int64_t y_stride = op.y_stride != 0 ? op.y_stride : width;
  const std::int64_t cols = op.cols;
  const bool plus_one = op.weight_kind == NormWeight::plus_one;
  for (std::int64_t item = begin; item < end; ++item) {
    const std::int64_t row = item / op.groups;
    const std::int64_t group = item % op.groups;
    const std::int64_t x_at = row * x_stride + group * cols;
    const T* r = row_of<T>(op.x, x_at);
    if (op.residual != nullptr) {
      const T* residual = row_of<T>(op.residual, x_at);
      T* sum = row_of<T>(op.residual_out, x_at);
#pragma GCC ivdep
      for (std::int64_t c = 0; c < cols; ++c) {
        sum[c] = from_float<T>(to_float(r[c]) + to_float(residual[c]));
      }
      r = sum;
    } else if (op.residual_out != nullptr && op.residual_out != op.x) {
      T* copy = row_of<T>(op.residual_out, x_at);
      for (std::int64_t c = 0; c < cols; ++c) copy[c] = r[c];
    }
    float lanes[kLanes] = {};
    std::int64_t c = 0;
    for (; c + kLanes <= cols; c += kLanes) {
      for (int l = 0; l < kLanes; ++l) lanes[l] += to_float(r[c + l]) * to_float(r[c + l]);
    }
    for (int l = 0; c + l < cols; ++l) lanes[l] += to_float(r[c + l]) * to_float(r[c + l]);
    const float rstd = 1.0F / std::sqrt(sum_lanes(lanes) / static_cast<float>(cols) + op.eps);
    if (op.rstd != nullptr) op.rstd[item] = rstd;
    T* y = row_of<T>(op.y, row * y_stride + group * cols);
    if (plus_one) {
#pragma GCC ivdep
      for (std::int64_t i = 0; i < cols; ++i) {
        y[i] = from_float<T>(to_float(r[i]) * rstd * (1.0F + weight[i]));
      }
    } else {
#pragma GCC ivdep
      for (std::int64_t i = 0; i < cols; ++i) {
        y[i] = from_float<T>(weight[i] * rounded_to<T>(to_float(r[i]) * rstd));
      }
    }
  }
}

template <typename T>
POROS_KERNEL_INLINE void backward_rows(const RmsNormBackward& op, const float* factor,
                                       std::int64_t begin, std::int64_t end) {
  const std::int64_t width = op.groups * op.cols;
  const std::int64_t dy_stride = op.dy_stride != 0 ? op.dy_stride : width;
  const std::int64_t r_stride = op.r_stride != 0 ? op.r_stride : width;
  const std::int64_t dx_stride = op.dx_stride != 0 ? op.dx_stride : width;
  const std::int64_t cols = op.cols;
  for (std::int64_t item = begin; item < end; ++item) {
    const std::int64_t row = item / op.groups;
    const std::int64_t group = item % op.groups;
    const T* dy = row_of<T>(op.dy, row * dy_stride + group * cols);
    const T* r = row_of<T>(op.r, row * r_stride + group * cols);
    T* dx = row_of<T>(op.dx, row * dx_stride + group * cols);
    float lanes[kLanes] = {};
    std::int64_t c = 0;
    for (; c + kLanes <= cols; c += kLanes) {
      for (int l = 0; l < kLanes; ++l) {
        lanes[l] += to_float(dy[c + l]) * factor[c + l] * to_float(r[c + l]);
      }
    }
    for (int l = 0; c + l < cols; ++l) {
      lanes[l] += to_float(dy[c + l]) * factor[c + l] * to_float(r[c + l]);
    }
    const float rstd = op.rstd[item];
    const float pull = rstd * rstd * (sum_lanes(lanes) / static_cast<float>(cols));
    if (op.residual_gradient != nullptr) {
      const T* residual = row_of<T>(op.residual_gradient, row * dx_stride + group * cols);
#pragma GCC ivdep
      for (std::int64_t i = 0; i < cols; ++i) {
        const float dr = rstd * (to_float(dy[i]) * factor[i] - to_float(r[i]) * pull);
        dx[i] = from_float<T>(dr + to_float(residual[i]));
      }
    } else {
#pragma GCC ivdep
      for (std::int64_t i = 0; i < cols; ++i) {
        dx[i] = from_float<T>(rstd * (to_float(dy[i]) * factor[i] - to_float(r[i]) * pull));
      }
    }
  }
}

POROS_KERNEL_CLONES void forward_f32(const RmsNormForward& op, const float* weight,
                                     std::int64_t begin, std::int64_t end) {
  forward_rows<float>(op, weight, begin, end);
}
POROS_KERNEL_CLONES void forward_bf16(const RmsNormForward& op, const float* weight,
                                      std::int64_t begin, std::int64_t end) {
  forward_rows<Bf16>(op, weight, begin, end);
}
POROS_KERNEL_CLONES void backward_f32(const RmsNormBackward& op, const float* factor,
                                      std::int64_t begin, std::int64_t end) {
  backward_rows<float>(op, factor, begin, end);
}
POROS_KERNEL_CLONES void backward_bf16(const RmsNormBackward& op, const float* factor,
                                       std::int64_t begin, std::int64_t end) {
  backward_rows<Bf16>(op, factor, begin, end);
}

}  // namespace

void rms_norm_forward(const Stream& stream, const RmsNormForward& op) {
  const std::vector<float> weight = as_floats(op.weight, op.weight_dtype, op.cols);
  const auto rows = op.dtype == DType::f32 ? forward_f32 : forward_bf16;
  parallel_for(stream.threads, op.rows * op.groups, row_grain(op.cols),
               [&](std::int64_t begin, std::int64_t end) { rows(op, weight.data(), begin, end); });
}

void rms_norm_backward(const Stream& stream, const RmsNormBackward& op) {
  std::vector<float> factor = as_floats(op.weight, op.weight_dtype, op.cols);
  if (op.weight_kind == NormWeight::plus_one) {
    for (float& value : factor) value += 1.0F;
  }
  const auto rows = op.dtype == DType::f32 ? backward_f32 : backward_bf16;
  parallel_for(stream.threads, op.rows * op.groups, row_grain(op.cols),
               [&](std::int64_t begin, std::int64_t end) { rows(op, factor.data(), begin, end); });
}

}  // namespace poros::cpu
