// SPDX-License-Identifier: Apache-2.0
// One block a row. The forward reads a row twice: once for the running maximum and sum, once to
// write the probabilities.
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

  float my_max = minus_infinity();
  float my_sum = 0.0F;
  float my_count = 0.0F;  // keys seen; exact below 2^24 a thread
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
  if (threadIdx.x == 0 && op.logsumexp != nullptr) {
    op.logsumexp[item] = count > 0.0F ? largest + logf(sum) : minus_infinity();
  }
  for (std::int64_t c = threadIdx.x; c < op.keys; c += kThreads) {
    const float p = visible(c) ? expf(counted(row[c], op.scale, op.softcap) - largest) / sum : 0.0F;
    row[c] = p;
    if (op.rounded != nullptr) put_rounded(op.rounded, op.rounded_dtype, base + c, p);
  }
}

__global__ void __launch_bounds__(kThreads)
    backward_kernel(AttentionSoftmaxBackward op, std::int64_t row_stride,
                    std::int64_t matrix_stride) {
  const std::int64_t item = blockIdx.x;
  const std::int64_t base = item / op.queries * matrix_stride + item % op.queries * row_stride;
  const float* p = op.probabilities + base;
  float* gradient = op.gradient + base;
  float dot = 0.0F;
  for (std::int64_t c = threadIdx.x; c < op.keys; c += kThreads) dot += p[c] * gradient[c];
  const float mean = team_sum<kThreads>(dot);
  for (std::int64_t c = threadIdx.x; c < op.keys; c += kThreads) {
    float ds = p[c] * (gradient[c] - mean) * op.scale;
    if (op.softcap > 0.0F && p[c] > 0.0F) {
      const float t = (logf(p[c]) + op.logsumexp[item]) / op.softcap;
      ds *= 1.0F - t * t;
    }
    gradient[c] = ds;
    if (op.rounded != nullptr) put_rounded(op.rounded, op.rounded_dtype, base + c, ds);
  }
}

}  // namespace

void attention_softmax_forward(const Stream& stream, const AttentionSoftmaxForward& op) {
  const char* name = "attention_softmax_forward";
  const std::int64_t row_stride = stride_or(op.row_stride, op.keys);
  const unsigned grid = blocks_for(name, op.batch * op.queries, 1);
  forward_kernel<<<grid, kThreads, 0, stream_of(stream)>>>(
      op, row_stride, stride_or(op.matrix_stride, op.queries * row_stride));
  POROS_CUDA_LAUNCHED(name);
}

void attention_softmax_backward(const Stream& stream, const AttentionSoftmaxBackward& op) {
  const char* name = "attention_softmax_backward";
  const std::int64_t row_stride = stride_or(op.row_stride, op.keys);
  const unsigned grid = blocks_for(name, op.batch * op.queries, 1);
  backward_kernel<<<grid, kThreads, 0, stream_of(stream)>>>(
      op, row_stride, stride_or(op.matrix_stride, op.queries * row_stride));
  POROS_CUDA_LAUNCHED(name);
}

}  // namespace poros::cuda
