// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/backends.hpp"
#include "kernels/cpu_convert.hpp"
#include "kernels/parallel.hpp"

namespace poros::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// A logit as it counts: soft-capped when cap > 0.
template <bool capped>
POROS_KERNEL_INLINE float counted(float logit, float cap) {
  if constexpr (capped) return cap * tanh_f32(logit / cap);
  return logit;
}

/// Derivative of the soft-cap where it yields `value`.
template <bool capped>
POROS_KERNEL_INLINE float slope_at(float value, float cap) {
  if constexpr (capped) return 1.0F - (value / cap) * (value / cap);
  return 1.0F;
}

template <typename T, typename Exponential, bool capped>
POROS_KERNEL_INLINE void accumulate_rows(const CrossEntropyAccumulate& op, std::int64_t begin,
                                         std::int64_t end) {
  const std::int64_t stride = op.row_stride != 0 ? op.row_stride : op.classes;
  const float cap = op.softcap;
  for (std::int64_t row = begin; row < end; ++row) {
    const T* logits = row_of<T>(op.logits, row * stride);
    Exponential* exponentials =
        op.exponentials != nullptr ? row_of<Exponential>(op.exponentials, row * stride) : nullptr;
    if (op.targets[row] < 0) {
      if (op.rescale != nullptr) op.rescale[row] = 0.0F;
      if (exponentials != nullptr) {
        std::fill(exponentials, exponentials + op.classes, from_float<Exponential>(0.0F));
      }
      continue;
    }
    float lanes[kLanes];
    std::fill(lanes, lanes + kLanes, kMinusInfinity);
    std::int64_t c = 0;
    for (; c + kLanes <= op.classes; c += kLanes) {
      for (int l = 0; l < kLanes; ++l) {
        const float value = to_float(logits[c + l]);
        lanes[l] = value > lanes[l] ? value : lanes[l];
      }
    }
    for (int l = 0; c + l < op.classes; ++l) {
      const float value = to_float(logits[c + l]);
      lanes[l] = value > lanes[l] ? value : lanes[l];
    }
    // The soft-cap is monotonic: the largest logit stays the largest.
    const float chunk_max = counted<capped>(max_lanes(lanes), cap);
    const float old_max = op.state.max[row];
    const float new_max = chunk_max > old_max ? chunk_max : old_max;
    const std::int64_t target = op.targets[row] - op.first_class;
    if (target >= 0 && target < op.classes) {
      op.state.target_logit[row] = counted<capped>(to_float(logits[target]), cap);
    }
    std::fill(lanes, lanes + kLanes, 0.0F);
    for (c = 0; c + kLanes <= op.classes; c += kLanes) {
      for (int l = 0; l < kLanes; ++l) {
        lanes[l] += exp_f32(counted<capped>(to_float(logits[c + l]), cap) - new_max);
      }
    }
    for (int l = 0; c + l < op.classes; ++l) {
      lanes[l] += exp_f32(counted<capped>(to_float(logits[c + l]), cap) - new_max);
    }
    const float rescale = exp_f32(old_max - new_max);
    op.state.sum[row] = op.state.sum[row] * rescale + sum_lanes(lanes);
    op.state.max[row] = new_max;
    if (op.rescale != nullptr) op.rescale[row] = rescale;
    if (exponentials != nullptr) {
#pragma GCC ivdep
      for (std::int64_t i = 0; i < op.classes; ++i) {
        const float value = counted<capped>(to_float(logits[i]), cap);
        exponentials[i] =
            from_float<Exponential>(exp_f32(value - new_max) * slope_at<capped>(value, cap));
      }
    }
  }
}

template <typename T, bool capped>
POROS_KERNEL_INLINE void gradient_rows(const CrossEntropyGradient& op, std::int64_t begin,
                                       std::int64_t end) {
  const std::int64_t stride = op.row_stride != 0 ? op.row_stride : op.classes;
  const float cap = op.softcap;
  for (std::int64_t row = begin; row < end; ++row) {
    T* logits = row_of<T>(op.logits, row * stride);
    if (op.targets[row] < 0) {
      std::fill(logits, logits + op.classes, from_float<T>(0.0F));
      continue;
    }
    const float max = op.state.max[row];
    const float sum = op.state.sum[row];
    const float factor = op.inv_supervised_tokens;
    const std::int64_t target = op.targets[row] - op.first_class;
    const bool here = target >= 0 && target < op.classes;
    const float target_logit = here ? counted<capped>(to_float(logits[target]), cap) : 0.0F;
    for (std::int64_t i = 0; i < op.classes; ++i) {
      const float value = counted<capped>(to_float(logits[i]), cap);
      logits[i] = from_float<T>(exp_f32(value - max) / sum * slope_at<capped>(value, cap) * factor);
    }
    if (here) {
      logits[target] = from_float<T>((exp_f32(target_logit - max) / sum - 1.0F) *
                                     slope_at<capped>(target_logit, cap) * factor);
    }
  }
}

POROS_KERNEL_CLONES void accumulate_f32(const CrossEntropyAccumulate& op, std::int64_t begin,
                                        std::int64_t end) {
  if (op.softcap > 0.0F) {
    accumulate_rows<float, float, true>(op, begin, end);
  } else {
    accumulate_rows<float, float, false>(op, begin, end);
  }
}
POROS_KERNEL_CLONES void accumulate_bf16(const CrossEntropyAccumulate& op, std::int64_t begin,
                                         std::int64_t end) {
  if (op.softcap > 0.0F) {
    accumulate_rows<Bf16, Bf16, true>(op, begin, end);
  } else {
    accumulate_rows<Bf16, Bf16, false>(op, begin, end);
  }
}
POROS_KERNEL_CLONES void accumulate_rounded(const CrossEntropyAccumulate& op, std::int64_t begin,
                                            std::int64_t end) {
  if (op.softcap > 0.0F) {
    accumulate_rows<float, Bf16, true>(op, begin, end);
  } else {
    accumulate_rows<float, Bf16, false>(op, begin, end);
  }
}
POROS_KERNEL_CLONES void gradient_f32(const CrossEntropyGradient& op, std::int64_t begin,
                                      std::int64_t end) {
  if (op.softcap > 0.0F) {
    gradient_rows<float, true>(op, begin, end);
  } else {
    gradient_rows<float, false>(op, begin, end);
  }
}
POROS_KERNEL_CLONES void gradient_bf16(const CrossEntropyGradient& op, std::int64_t begin,
                                       std::int64_t end) {
  if (op.softcap > 0.0F) {
    gradient_rows<Bf16, true>(op, begin, end);
  } else {
    gradient_rows<Bf16, false>(op, begin, end);
  }
}

}  // namespace

void cross_entropy_init(const Stream& /*stream*/, const CrossEntropyState& state,
                        std::int64_t rows) {
  std::fill(state.max, state.max + rows, kMinusInfinity);
  std::fill(state.sum, state.sum + rows, 0.0F);
  // A target that no chunk holds must not pass for a loss.
  std::fill(state.target_logit, state.target_logit + rows, std::numeric_limits<float>::quiet_NaN());
}

void cross_entropy_accumulate(const Stream& stream, const CrossEntropyAccumulate& op) {
  const auto rows = op.round_exponentials    ? accumulate_rounded
                    : op.dtype == DType::f32 ? accumulate_f32
                                             : accumulate_bf16;
  parallel_for(stream.threads, op.rows, row_grain(4 * op.classes),
               [&](std::int64_t begin, std::int64_t end) { rows(op, begin, end); });
}

void cross_entropy_loss(const Stream& /*stream*/, const CrossEntropyLoss& op) {
  double total = 0.0;
  for (std::int64_t row = 0; row < op.rows; ++row) {
    float loss = 0.0F;
    if (op.targets[row] >= 0) {
      loss = static_cast<float>(static_cast<double>(op.state.max[row]) +
                                std::log(static_cast<double>(op.state.sum[row])) -
                                static_cast<double>(op.state.target_logit[row]));
    }
    op.row_loss[row] = loss;
    total += static_cast<double>(loss);
  }
  *op.total = (op.add_to_total ? *op.total : 0.0) + total;
}

void cross_entropy_gradient(const Stream& stream, const CrossEntropyGradient& op) {
  const auto rows = op.dtype == DType::f32 ? gradient_f32 : gradient_bf16;
  parallel_for(stream.threads, op.rows, row_grain(4 * op.classes),
               [&](std::int64_t begin, std::int64_t end) { rows(op, begin, end); });
}

void cross_entropy_finish(const Stream& stream, const CrossEntropyFinish& op) {
  parallel_for(
      stream.threads, op.rows, row_grain(op.hidden), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          const bool supervised = op.targets[row] >= 0;
          const float sum = op.state.sum[row];
          const float capped = op.softcap > 0.0F ? op.state.target_logit[row] / op.softcap : 0.0F;
          const float slope = 1.0F - capped * capped;
          for (std::int64_t c = 0; c < op.hidden; ++c) {
            const std::int64_t at = row * op.hidden + c;
            float dx = 0.0F;
            if (supervised) {
              const float head =
                  op.target_dtype == DType::f32    ? row_of<float>(op.target_rows, at)[0]
                  : op.target_dtype == DType::bf16 ? to_float(row_of<Bf16>(op.target_rows, at)[0])
                                                   : to_float(row_of<F16>(op.target_rows, at)[0]);
              dx = (op.accumulated[at] / sum - slope * head) * op.inv_supervised_tokens;
            }
            if (op.dtype == DType::f32) {
              row_of<float>(op.dx, at)[0] = dx;
            } else {
              row_of<Bf16>(op.dx, at)[0] = to_bf16(dx);
            }
          }
        }
      });
}

}  // namespace poros::cpu
