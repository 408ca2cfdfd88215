// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "kernels/backends.hpp"
#include "kernels/cpu_convert.hpp"
#include "kernels/parallel.hpp"

namespace poros::cpu {
namespace {

template <typename T>
void route_rows(const MoeRoute& op, std::int64_t begin, std::int64_t end) {
  for (std::int64_t token = begin; token < end; ++token) {
    const T* logits = row_of<T>(op.logits, token * op.experts);
    float* p = op.probabilities + token * op.experts;
    float largest = to_float(logits[0]);
    for (std::int64_t e = 1; e < op.experts; ++e) largest = std::max(largest, to_float(logits[e]));
    float sum = 0.0F;
    for (std::int64_t e = 0; e < op.experts; ++e) {
      p[e] = exp_f32(to_float(logits[e]) - largest);
      sum += p[e];
    }
    for (std::int64_t e = 0; e < op.experts; ++e) p[e] /= sum;
    float chosen_sum = 0.0F;
    for (std::int64_t j = 0; j < op.k; ++j) {
      std::int32_t* chosen = op.expert + token * op.k;
      std::int64_t best = -1;
      for (std::int64_t e = 0; e < op.experts; ++e) {
        const bool taken =
            std::find(chosen, chosen + j, static_cast<std::int32_t>(e)) != chosen + j;
        if (!taken && (best < 0 || p[e] > p[best])) best = e;
      }
      chosen[j] = static_cast<std::int32_t>(best);
      chosen_sum += p[best];
    }
    for (std::int64_t j = 0; j < op.k; ++j) {
      float weight = p[op.expert[token * op.k + j]];
      if (op.normalise) weight /= chosen_sum;
      op.weights[token * op.k + j] =
          op.weights_dtype == DType::bf16 ? rounded_to<Bf16>(weight) : weight;
    }
  }
}

template <typename T>
void route_backward_rows(const MoeRouteBackward& op, std::int64_t begin, std::int64_t end) {
  for (std::int64_t token = begin; token < end; ++token) {
    const float* p = op.probabilities + token * op.experts;
    const std::int32_t* chosen = op.expert + token * op.k;
    const float* dweights = op.dweights + token * op.k;
    T* dlogits = row_of<T>(op.dlogits, token * op.experts);
    // Gradient of the chosen probabilities; with renormalisation w_j = p_j / sum(p).
    float sum = 1.0F;
    float pull = 0.0F;
    if (op.normalise) {
      sum = 0.0F;
      for (std::int64_t j = 0; j < op.k; ++j) sum += p[chosen[j]];
      for (std::int64_t j = 0; j < op.k; ++j) pull += dweights[j] * (p[chosen[j]] / sum);
    }
    float mean = 0.0F;  // of the probability gradient under p
    for (std::int64_t j = 0; j < op.k; ++j) {
      mean += p[chosen[j]] * ((dweights[j] - pull) / sum);
    }
    for (std::int64_t e = 0; e < op.experts; ++e) {
      float dp = 0.0F;
      for (std::int64_t j = 0; j < op.k; ++j) {
        if (chosen[j] == e) dp = (dweights[j] - pull) / sum;
      }
      dlogits[e] = from_float<T>(p[e] * (dp - mean));
    }
  }
}

template <typename T>
POROS_KERNEL_INLINE void combine_rows(const MoeCombine& op, std::int64_t begin, std::int64_t end) {
  for (std::int64_t token = begin; token < end; ++token) {
    T* y = row_of<T>(op.y, token * op.cols);
    const std::int32_t* position = op.position + token * op.k;
    constexpr std::int64_t kTile = 256;
    for (std::int64_t tile = 0; tile < op.cols; tile += kTile) {
      const std::int64_t count = std::min(kTile, op.cols - tile);
      float sum[kTile] = {};
      for (std::int64_t j = 0; j < op.k; ++j) {
        if (position[j] < 0) continue;
        const float weight = op.weights != nullptr ? op.weights[token * op.k + j] : 1.0F;
        const T* x = row_of<T>(op.x, position[j] * op.cols + tile);
        for (std::int64_t c = 0; c < count; ++c) sum[c] += weight * to_float(x[c]);
      }
      for (std::int64_t c = 0; c < count; ++c) y[tile + c] = from_float<T>(sum[c]);
    }
  }
}

template <typename T>
POROS_KERNEL_INLINE void combine_backward_rows(const MoeCombineBackward& op, std::int64_t begin,
                                               std::int64_t end) {
  for (std::int64_t slot = begin; slot < end; ++slot) {
    const std::int64_t position = op.position[slot];
    if (position < 0) {
      if (op.dweights != nullptr) op.dweights[slot] = 0.0F;
      continue;
    }
    const T* dy = row_of<T>(op.dy, slot / op.k * (op.dy_stride != 0 ? op.dy_stride : op.cols));
    if (op.dweights != nullptr) {
      const T* x = row_of<T>(op.x, position * op.cols);
      float lanes[kLanes] = {};
      std::int64_t c = 0;
      for (; c + kLanes <= op.cols; c += kLanes) {
        for (int l = 0; l < kLanes; ++l) lanes[l] += to_float(dy[c + l]) * to_float(x[c + l]);
      }
      for (int l = 0; c + l < op.cols; ++l) lanes[l] += to_float(dy[c + l]) * to_float(x[c + l]);
      op.dweights[slot] = sum_lanes(lanes);
    }
    T* dx = row_of<T>(op.dx, position * op.cols);
    const float weight = op.weights[slot];
    for (std::int64_t c = 0; c < op.cols; ++c) dx[c] = from_float<T>(weight * to_float(dy[c]));
  }
}

POROS_KERNEL_CLONES void combine_f32(const MoeCombine& op, std::int64_t begin, std::int64_t end) {
  combine_rows<float>(op, begin, end);
}
POROS_KERNEL_CLONES void combine_bf16(const MoeCombine& op, std::int64_t begin, std::int64_t end) {
  combine_rows<Bf16>(op, begin, end);
}
POROS_KERNEL_CLONES void combine_backward_f32(const MoeCombineBackward& op, std::int64_t begin,
                                              std::int64_t end) {
  combine_backward_rows<float>(op, begin, end);
}
POROS_KERNEL_CLONES void combine_backward_bf16(const MoeCombineBackward& op, std::int64_t begin,
                                               std::int64_t end) {
  combine_backward_rows<Bf16>(op, begin, end);
}

}  // namespace

void moe_route(const Stream& stream, const MoeRoute& op) {
  const auto rows = op.dtype == DType::f32 ? route_rows<float> : route_rows<Bf16>;
  parallel_for(stream.threads, op.tokens, row_grain(op.experts * op.k),
               [&](std::int64_t begin, std::int64_t end) { rows(op, begin, end); });
}

void moe_route_backward(const Stream& stream, const MoeRouteBackward& op) {
  const auto rows = op.dtype == DType::f32 ? route_backward_rows<float> : route_backward_rows<Bf16>;
  parallel_for(stream.threads, op.tokens, row_grain(op.experts * op.k),
               [&](std::int64_t begin, std::int64_t end) { rows(op, begin, end); });
}

void moe_sort(const Stream& /*stream*/, const MoeSort& op) {
  const std::int64_t slots = op.tokens * op.k;
  const auto chosen = [&](std::int64_t slot) {
    const std::int32_t expert = op.expert[slot];
    return expert >= 0 && expert < op.experts ? expert : -1;
  };
  std::fill(op.offsets, op.offsets + op.experts + 1, 0);
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    if (chosen(slot) >= 0) op.offsets[chosen(slot) + 1] += 1;
  }
  const auto granule = static_cast<std::int32_t>(op.granule);
  for (std::int64_t e = 0; e < op.experts; ++e) {
    op.offsets[e + 1] = op.offsets[e] + (op.offsets[e + 1] + granule - 1) / granule * granule;
  }
  std::vector<std::int32_t> next(op.offsets, op.offsets + op.experts);
  const std::int64_t rows = moe_sorted_rows(slots, op.experts, op.granule);
  std::fill(op.slot, op.slot + rows, -1);
  std::fill(op.token, op.token + rows, -1);
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    const std::int32_t expert = chosen(slot);
    op.position[slot] = -1;
    if (expert < 0) continue;
    const std::int32_t at = next[static_cast<std::size_t>(expert)]++;
    op.position[slot] = at;
    op.slot[at] = static_cast<std::int32_t>(slot);
    op.token[at] = static_cast<std::int32_t>(slot / op.k);
  }
}

void moe_row_keys(const Stream& /*stream*/, const MoeRowKeys& op) {
  for (std::int64_t row = 0; row < op.rows; ++row) {
    const std::int64_t slot = op.slot[row], token = slot / op.k;
    op.micro_batch[row] = slot < 0 ? 0 : op.token_micro_batch[token];
    op.row_index[row] =
        slot < 0 ? 0 : static_cast<std::int32_t>(op.token_row_index[token] * op.k + slot % op.k);
  }
}

void moe_combine(const Stream& stream, const MoeCombine& op) {
  const auto rows = op.dtype == DType::f32 ? combine_f32 : combine_bf16;
  parallel_for(stream.threads, op.tokens, row_grain(op.cols * op.k),
               [&](std::int64_t begin, std::int64_t end) { rows(op, begin, end); });
}

void moe_combine_backward(const Stream& stream, const MoeCombineBackward& op) {
  const auto rows = op.dtype == DType::f32 ? combine_backward_f32 : combine_backward_bf16;
  parallel_for(stream.threads, op.tokens * op.k, row_grain(op.cols),
               [&](std::int64_t begin, std::int64_t end) { rows(op, begin, end); });
}

}  // namespace poros::cpu
