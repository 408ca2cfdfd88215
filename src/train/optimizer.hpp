// SPDX-License-Identifier: Apache-2.0
// AdamW with clipping by the global norm, over the executor's flat buffers.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/adamw.hpp"
#include "kernels/device.hpp"
#include "train/device.hpp"
#include "train/executor.hpp"

namespace poros {

/// The trained parameters: four fp32 buffers of one layout, in memory of the stream's device.
struct FlatParameters {
  float* master = nullptr;
  float* gradient = nullptr;
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  std::vector<ParameterView> views;
};

[[nodiscard]] FlatParameters flat_parameters(Executor& executor);

struct AdamWSettings {
  double weight_decay = 0.01;
  double max_grad_norm = 1.0;  // 0: no clipping
  // Fixed for every arm, peers included.
  static constexpr double kBeta1 = 0.9, kBeta2 = 0.999, kEpsilon = 1e-8;
};

/// The update of torch.nn.utils.clip_grad_norm_ followed by torch.optim.AdamW. Moments start as
/// they stand in the buffers (zero for a new run). Gradients are only read: after update() they
/// still are as accumulated, not clipped.
class AdamW {
 public:
  /// The buffers outlive this object.
  AdamW(const FlatParameters& parameters, const AdamWSettings& settings, const Stream& stream);
  AdamW(const AdamW&) = delete;
  AdamW& operator=(const AdamW&) = delete;

  /// Global 2-norm of the gradients as they stand, before clipping, and whether all are finite.
  /// Waits for it.
  GradientNorm measure_norm();

  /// One update with the norm measured last. Non-finite: weights, moments and the count of updates
  /// stay as they are.
  void update(double learning_rate);

  /// Goes on as after that many updates; the moments of that point stand in the buffers.
  void restore(std::int64_t updates);

  /// Updates made so far; enters the bias correction.
  [[nodiscard]] std::int64_t updates() const;

 private:
  [[nodiscard]] AdamWTensors list() const;

  AdamWSettings settings_;
  Stream stream_;
  std::vector<AdamWTensor> tensors_;
  DeviceBuffer memory_;                    // all of the following
  AdamWTensor* device_tensors_ = nullptr;  // CUDA only
  double* workspace_ = nullptr;
  GradientNorm* norm_ = nullptr;
  std::int64_t* updates_ = nullptr;
};

/// The parameters copied to host memory; `memory` holds them. On the CPU the same pointers.
[[nodiscard]] FlatParameters host_parameters(Executor& executor, std::vector<float>& memory);

}  // namespace poros
