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

/// Key columns low .. high-1 that causality and window leave to a query.
struct Span {
  std::int64_t low, high;
};

POROS_KERNEL_INLINE Span visible_span(const AttentionMask& mask, std::int64_t query,
                                      std::int64_t keys) {
  const std::int64_t token = mask.first_query + query;
  const std::int64_t first = mask.window > 0 ? token - mask.window + 1 : 0;
  const std::int64_t low = first > mask.first_key ? first - mask.first_key : 0;
  const std::int64_t high = token + 1 - mask.first_key;
  return {low, high < keys ? high : keys};
}

template <typename T>
POROS_KERNEL_INLINE void store_rounded(const float* from, void* to, std::int64_t at,
                                       std::int64_t count) {
  T* out = row_of<T>(to, at);
  for (std::int64_t c = 0; c < count; ++c) out[c] = from_float<T>(from[c]);
}

POROS_KERNEL_INLINE void store_rounded(const float* from, void* to, DType dtype, std::int64_t at,
                                       std::int64_t count) {
  if (dtype == DType::bf16) {
    store_rounded<Bf16>(from, to, at, count);
  } else {
    store_rounded<float>(from, to, at, count);
  }
}

/// Turns one row of raw scores into probabilities; returns the logsumexp.
POROS_KERNEL_INLINE float softmax_row(const AttentionSoftmaxForward& op, float* row,
                                      std::int64_t query) {
  const Span span = visible_span(op.mask, query, op.keys);
  const std::int32_t* documents = op.mask.documents;
  std::int64_t seen = span.high - span.low;
  const float scale = op.scale;
  if (op.softcap > 0.0F) {
    const float cap = op.softcap;
    for (std::int64_t c = span.low; c < span.high; ++c) {
      row[c] = cap * tanh_f32(row[c] * scale / cap);
    }
  } else {
    for (std::int64_t c = span.low; c < span.high; ++c) row[c] *= scale;
  }
  if (documents != nullptr && seen > 0) {
    const std::int32_t mine = documents[op.mask.first_query + query];
    const std::int32_t* theirs = documents + op.mask.first_key;
    std::int64_t same = 0;
    if (mine >= 0) {
      for (std::int64_t c = span.low; c < span.high; ++c) {
        same += theirs[c] == mine ? 1 : 0;
        row[c] = theirs[c] == mine ? row[c] : kMinusInfinity;
      }
    }
    seen = same;
  }
  if (seen <= 0) {
    std::fill(row, row + op.keys, 0.0F);
    return kMinusInfinity;
  }
  float lanes[kLanes];
  std::fill(lanes, lanes + kLanes, kMinusInfinity);
  std::int64_t c = span.low;
  for (; c + kLanes <= span.high; c += kLanes) {
    for (int l = 0; l < kLanes; ++l) lanes[l] = row[c + l] > lanes[l] ? row[c + l] : lanes[l];
  }
  for (int l = 0; c + l < span.high; ++l) {
    lanes[l] = row[c + l] > lanes[l] ? row[c + l] : lanes[l];
  }
  const float largest = max_lanes(lanes);
  std::fill(lanes, lanes + kLanes, 0.0F);
  for (std::int64_t i = span.low; i < span.high; ++i) row[i] = exp_f32(row[i] - largest);
  for (c = span.low; c + kLanes <= span.high; c += kLanes) {
    for (int l = 0; l < kLanes; ++l) lanes[l] += row[c + l];
  }
  for (int l = 0; c + l < span.high; ++l) lanes[l] += row[c + l];
  const float sum = sum_lanes(lanes);
  std::fill(row, row + span.low, 0.0F);
  for (std::int64_t i = span.low; i < span.high; ++i) row[i] /= sum;
  std::fill(row + span.high, row + op.keys, 0.0F);
  return largest + static_cast<float>(std::log(static_cast<double>(sum)));
}

POROS_KERNEL_CLONES void forward_rows(const AttentionSoftmaxForward& op, std::int64_t begin,
                                      std::int64_t end) {
  const std::int64_t row_stride = op.row_stride != 0 ? op.row_stride : op.keys;
  const std::int64_t matrix_stride =
      op.matrix_stride != 0 ? op.matrix_stride : op.queries * row_stride;
  for (std::int64_t item = begin; item < end; ++item) {
    const std::int64_t query = item % op.queries;
    const std::int64_t at = item / op.queries * matrix_stride + query * row_stride;
    const float logsumexp = softmax_row(op, op.scores + at, query);
    if (op.logsumexp != nullptr) op.logsumexp[item] = logsumexp;
    if (op.rounded != nullptr) {
      store_rounded(op.scores + at, op.rounded, op.rounded_dtype, at, op.keys);
    }
  }
}

POROS_KERNEL_CLONES void backward_rows(const AttentionSoftmaxBackward& op, std::int64_t begin,
                                       std::int64_t end) {
  const std::int64_t row_stride = op.row_stride != 0 ? op.row_stride : op.keys;
  const std::int64_t matrix_stride =
      op.matrix_stride != 0 ? op.matrix_stride : op.queries * row_stride;
  for (std::int64_t item = begin; item < end; ++item) {
    const std::int64_t at = item / op.queries * matrix_stride + item % op.queries * row_stride;
    const float* p = op.probabilities + at;
    float* gradient = op.gradient + at;
    float lanes[kLanes] = {};
    std::int64_t c = 0;
    for (; c + kLanes <= op.keys; c += kLanes) {
      for (int l = 0; l < kLanes; ++l) lanes[l] += p[c + l] * gradient[c + l];
    }
    for (int l = 0; c + l < op.keys; ++l) lanes[l] += p[c + l] * gradient[c + l];
    const float mean = sum_lanes(lanes);
    for (std::int64_t i = 0; i < op.keys; ++i) {
      gradient[i] = p[i] * (gradient[i] - mean) * op.scale;
    }
    if (op.softcap > 0.0F) {
      const float logsumexp = op.logsumexp[item];
      for (std::int64_t i = 0; i < op.keys; ++i) {
        if (p[i] > 0.0F) {
          const double capped = std::log(static_cast<double>(p[i])) + logsumexp;
          const double t = capped / op.softcap;
          gradient[i] *= static_cast<float>(1.0 - t * t);
        }
      }
    }
    if (op.rounded != nullptr) {
      store_rounded(gradient, op.rounded, op.rounded_dtype, at, op.keys);
    }
  }
}

}  // namespace

void attention_softmax_forward(const Stream& stream, const AttentionSoftmaxForward& op) {
  parallel_for(stream.threads, op.batch * op.queries, row_grain(2 * op.keys),
               [&](std::int64_t begin, std::int64_t end) { forward_rows(op, begin, end); });
}

void attention_softmax_backward(const Stream& stream, const AttentionSoftmaxBackward& op) {
  parallel_for(stream.threads, op.batch * op.queries, row_grain(2 * op.keys),
               [&](std::int64_t begin, std::int64_t end) { backward_rows(op, begin, end); });
}

}  // namespace poros::cpu
