// SPDX-License-Identifier: Apache-2.0
// One block a row. Rows of up to kKept * kThreads keys stay in registers, so that each is read
// once; the forward reads a longer one twice: for the running maximum and sum, and to write the
// probabilities.
#include "kernels/cuda_backend.hpp"
#include "kernels/cuda_common.cuh"

namespace poros::cuda {
namespace {

__device__ __forceinline__ float minus_infinity() {
  return __int_as_float(0xFF800000);
}

/// The scaled and soft-capped score.
__device__ __forceinline__ float counted(float score, float scale, float softcap) {
  const float s = score * scale;
  return softcap > 0.0F ? softcap * tanhf(s / softcap) : s;
}

__device__ __forceinline__ void put_rounded(void* to, DType dtype, std::int64_t at, float value) {
  if (dtype == DType::bf16) {
    static_cast<Bf*>(to)[at] = stored<Bf>(value);
  } else {
    static_cast<float*>(to)[at] = value;
  }
}

constexpr int kKept = 16;  // keys that a thread keeps

template <bool kept>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(AttentionSoftmaxForward op, std::int64_t row_stride,
                   std::int64_t matrix_stride) {
  const std::int64_t item = blockIdx.x;
  const std::int64_t query = item % op.queries;
  const std::int64_t base = item / op.queries * matrix_stride + query * row_stride;
  float* row = op.scores + base;
  const std::int64_t token = op.mask.first_query + query;
  const std::int64_t first = op.mask.window > 0 ? token - op.mask.window + 1 : 0;
  const std::int64_t low = first > op.mask.first_key ? first - op.mask.first_key : 0;
  const std::int64_t after = token + 1 - op.mask.first_key;
  const std::int64_t high = after < op.keys ? after : op.keys;
  const std::int32_t* theirs =
      op.mask.documents == nullptr ? nullptr : op.mask.documents + op.mask.first_key;
  const std::int32_t mine = theirs == nullptr ? 0 : op.mask.documents[token];
  const auto visible = [&](std::int64_t c) {
    return c >= low && c < high && (theirs == nullptr || (mine >= 0 && theirs[c] == mine));
  };

  const auto put = [&](std::int64_t c, float p) {
    row[c] = p;
    if (op.rounded != nullptr) put_rounded(op.rounded, op.rounded_dtype, base + c, p);
  };
  const auto put_logsumexp = [&](float largest, float sum, float count) {
    if (threadIdx.x != 0 || op.logsumexp == nullptr) return;
    op.logsumexp[item] = count > 0.0F ? largest + logf(sum) : minus_infinity();
  };

  float my_max = minus_infinity();
  float my_sum = 0.0F;
  float my_count = 0.0F;  // keys seen; exact below 2^24 a thread
  if constexpr (kept) {
    float s[kKept];
    unsigned seen = 0;
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      const std::int64_t c = k * kThreads + static_cast<int>(threadIdx.x);
      if (!visible(c)) continue;
      s[k] = row[c];
      seen |= 1U << k;
    }
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      if ((seen >> k & 1U) == 0) continue;
      s[k] = counted(s[k], op.scale, op.softcap);
      my_max = fmaxf(my_max, s[k]);
    }
    const float largest = team_max<kThreads>(my_max);
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      if ((seen >> k & 1U) == 0) continue;
      const bool weighs = s[k] != minus_infinity();
      s[k] = expf(s[k] - largest);  // NaN where all are -inf
      if (weighs) my_sum += s[k];
    }
    const float sum = team_sum<kThreads>(my_sum);
    const float count = team_sum<kThreads>(static_cast<float>(__popc(seen)));
    put_logsumexp(largest, sum, count);
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      const std::int64_t c = k * kThreads + static_cast<int>(threadIdx.x);
      if (c < op.keys) put(c, (seen >> k & 1U) != 0 ? s[k] / sum : 0.0F);
    }
  } else {
    for (std::int64_t c = low + threadIdx.x; c < high; c += kThreads) {
      if (!visible(c)) continue;
      const float s = counted(row[c], op.scale, op.softcap);
      my_count += 1.0F;
      if (s == minus_infinity()) continue;  // weighs nothing
      if (s > my_max) {
        my_sum = my_sum * expf(my_max - s) + 1.0F;
        my_max = s;
      } else {
        my_sum += expf(s - my_max);  // NaN comes here and stays
      }
    }
    const float largest = team_max<kThreads>(my_max);
    // A thread that saw nothing adds nothing (exp(-inf - largest) is 0 unless all are -inf).
    const float part = my_count > 0.0F ? my_sum * expf(my_max - largest) : 0.0F;
    const float sum = team_sum<kThreads>(part);
    const float count = team_sum<kThreads>(my_count);
    put_logsumexp(largest, sum, count);
    for (std::int64_t c = threadIdx.x; c < op.keys; c += kThreads) {
      put(c, visible(c) ? expf(counted(row[c], op.scale, op.softcap) - largest) / sum : 0.0F);
    }
  }
}

template <bool kept>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(AttentionSoftmaxBackward op, std::int64_t row_stride,
                    std::int64_t matrix_stride) {
  const std::int64_t item = blockIdx.x;
  const std::int64_t base = item / op.queries * matrix_stride + item % op.queries * row_stride;
  const float* p = op.probabilities + base;
  float* gradient = op.gradient + base;
  const auto put = [&](std::int64_t c, float probability, float ds) {
    ds *= op.scale;
    if (op.softcap > 0.0F && probability > 0.0F) {
      const float t = (logf(probability) + op.logsumexp[item]) / op.softcap;
      ds *= 1.0F - t * t;
    }
    gradient[c] = ds;
    if (op.rounded != nullptr) put_rounded(op.rounded, op.rounded_dtype, base + c, ds);
  };
  float dot = 0.0F;
  if constexpr (kept) {
    float my_p[kKept];
    float my_gradient[kKept];
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      const std::int64_t c = k * kThreads + static_cast<int>(threadIdx.x);
      my_p[k] = c < op.keys ? p[c] : 0.0F;
      my_gradient[k] = c < op.keys ? gradient[c] : 0.0F;
    }
#pragma unroll
    for (int k = 0; k < kKept; ++k) dot += my_p[k] * my_gradient[k];
    const float mean = team_sum<kThreads>(dot);
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      const std::int64_t c = k * kThreads + static_cast<int>(threadIdx.x);
      if (c < op.keys) put(c, my_p[k], my_p[k] * (my_gradient[k] - mean));
    }
  } else {
    for (std::int64_t c = threadIdx.x; c < op.keys; c += kThreads) dot += p[c] * gradient[c];
    const float mean = team_sum<kThreads>(dot);
    for (std::int64_t c = threadIdx.x; c < op.keys; c += kThreads) {
      put(c, p[c], p[c] * (gradient[c] - mean));
    }
  }
}

}  // namespace

void attention_softmax_forward(const Stream& stream, const AttentionSoftmaxForward& op) {
  const char* name = "attention_softmax_forward";
  const std::int64_t row_stride = stride_or(op.row_stride, op.keys);
  const unsigned grid = blocks_for(name, op.batch * op.queries, 1);
  const auto kernel = op.keys <= kKept * kThreads ? forward_kernel<true> : forward_kernel<false>;
  kernel<<<grid, kThreads, 0, stream_of(stream)>>>(
      op, row_stride, stride_or(op.matrix_stride, op.queries * row_stride));
  POROS_CUDA_LAUNCHED(name);
}

void attention_softmax_backward(const Stream& stream, const AttentionSoftmaxBackward& op) {
  const char* name = "attention_softmax_backward";
  const std::int64_t row_stride = stride_or(op.row_stride, op.keys);
  const unsigned grid = blocks_for(name, op.batch * op.queries, 1);
  const auto kernel = op.keys <= kKept * kThreads ? backward_kernel<true> : backward_kernel<false>;
  kernel<<<grid, kThreads, 0, stream_of(stream)>>>(
      op, row_stride, stride_or(op.matrix_stride, op.queries * row_stride));
  POROS_CUDA_LAUNCHED(name);
}

}  // namespace poros::cuda
