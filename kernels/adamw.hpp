// SPDX-License-Identifier: Apache-2.0
// Global gradient norm and AdamW (Loshchilov and Hutter 2019), in the order of operations of
// torch.nn.utils.clip_grad_norm_ and torch.optim.AdamW (single-tensor form).
#pragma once

#include <cstdint>

#include "kernels/device.hpp"
#include "kernels/dtype.hpp"

namespace poros {

/// One trained tensor; all f32, `count` elements, in memory of the stream's device.
struct AdamWTensor {
  float* weight = nullptr;      // master
  float* gradient = nullptr;    // only read
  float* exp_avg = nullptr;     // first moment
  float* exp_avg_sq = nullptr;  // second moment
  void* copy = nullptr;         // the new weight in copy_dtype as well; or null
  DType copy_dtype = DType::bf16;
  std::int64_t count = 0;
};

/// The same `size` entries twice: for the host, and (CUDA only, else null) uploaded once to device
/// memory by the caller. The list's order is part of the numerical plan.
struct AdamWTensors {
  const AdamWTensor* host = nullptr;
  const AdamWTensor* device = nullptr;
  std::int64_t size = 0;
};

/// What the norm tells the update; lives in memory of the stream's device.
struct GradientNorm {
  float norm = 0;           // 2-norm of the tensors' 2-norms
  std::int32_t finite = 0;  // 1: every gradient and the norm are finite
};

/// Elements that one partial sum of the norm covers. Part of the numerical plan.
inline constexpr std::int64_t kOptimizerChunk = 16384;

/// Doubles of workspace that global_norm needs.
[[nodiscard]] std::int64_t global_norm_workspace(const AdamWTensors& tensors);

/// Reduction in double in a fixed order that depends on the counts alone. An empty list has norm 0.
struct GlobalNorm {
  AdamWTensors tensors = {};
  double* workspace = nullptr;  // [global_norm_workspace(tensors)], device memory
  GradientNorm* result = nullptr;
};
void global_norm(const Stream& stream, const GlobalNorm& op);

/// If result->finite: g = gradient * min(1, max_norm / (norm + 1e-6)); step += 1; then
///   w *= 1 - lr*weight_decay;  m += (1-beta1)*(g - m);  v = beta2*v + (1-beta2)*g*g;
///   w -= lr/(1-beta1^step) * m / (sqrt(v)/sqrt(1-beta2^step) + eps).
/// Otherwise weights, moments, copies and the step count stay as they are.
struct AdamWStep {
  AdamWTensors tensors = {};
  const GradientNorm* norm = nullptr;  // device memory; null: no clipping, taken as finite
  std::int64_t* step = nullptr;        // device memory: updates made so far; counts up by one
  double learning_rate = 0;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  double max_norm = 0;  // 0: no clipping
};
void adamw_step(const Stream& stream, const AdamWStep& op);

}  // namespace poros
