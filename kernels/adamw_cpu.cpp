// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/backends.hpp"
#include "kernels/cpu_convert.hpp"
#include "kernels/parallel.hpp"

namespace poros::cpu {
namespace {

/// A run of at most kOptimizerChunk elements of one tensor.
struct Chunk {
  const AdamWTensor* tensor;
  std::int64_t begin, end;
};

std::vector<Chunk> chunks_of(const AdamWTensors& tensors) {
  std::vector<Chunk> chunks;
  for (std::int64_t t = 0; t < tensors.size; ++t) {
    const AdamWTensor& tensor = tensors.host[t];
    for (std::int64_t begin = 0; begin < tensor.count; begin += kOptimizerChunk) {
      chunks.push_back({&tensor, begin, std::min(tensor.count, begin + kOptimizerChunk)});
    }
  }
  return chunks;
}

POROS_KERNEL_CLONES double sum_of_squares(const float* values, std::int64_t count) {
  double lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      lanes[l] += static_cast<double>(values[i + l]) * static_cast<double>(values[i + l]);
    }
  }
  for (int l = 0; i + l < count; ++l) {
    lanes[l] += static_cast<double>(values[i + l]) * static_cast<double>(values[i + l]);
  }
  return sum_lanes(lanes);
}

/// Constants of one step, each rounded to float where torch rounds its scalar.
struct Scalars {
  float clip, keep, blend1, beta2, rest2, eps, root2, step_size;
  bool blend_from_end;  // torch.lerp changes its form at 0.5
};

POROS_KERNEL_CLONES void update(const Scalars& s, float* __restrict weight,
                                const float* __restrict gradient, float* __restrict exp_avg,
                                float* __restrict exp_avg_sq, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float g = gradient[i] * s.clip;
    const float m = exp_avg[i];
    const float new_m = s.blend_from_end ? g - (g - m) * (1.0F - s.blend1) : m + s.blend1 * (g - m);
    const float new_v = exp_avg_sq[i] * s.beta2 + s.rest2 * g * g;
    const float denominator = std::sqrt(new_v) / s.root2 + s.eps;
    exp_avg[i] = new_m;
    exp_avg_sq[i] = new_v;
    weight[i] = weight[i] * s.keep + s.step_size * new_m / denominator;
  }
}

}  // namespace

void global_norm(const Stream& stream, const GlobalNorm& op) {
  const std::vector<Chunk> chunks = chunks_of(op.tensors);
  parallel_for(stream.threads, static_cast<std::int64_t>(chunks.size()), 4,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) {
                   const Chunk& chunk = chunks[static_cast<std::size_t>(i)];
                   op.workspace[i] = sum_of_squares(chunk.tensor->gradient + chunk.begin,
                                                    chunk.end - chunk.begin);
                 }
               });
  double squares = 0.0;
  std::int64_t next = 0;
  for (std::int64_t t = 0; t < op.tensors.size; ++t) {
    double tensor_squares = 0.0;
    for (std::int64_t at = 0; at < op.tensors.host[t].count; at += kOptimizerChunk) {
      tensor_squares += op.workspace[next++];
    }
    const auto tensor_norm = static_cast<double>(static_cast<float>(std::sqrt(tensor_squares)));
    squares += tensor_norm * tensor_norm;
  }
  op.result->norm = static_cast<float>(std::sqrt(squares));
  op.result->finite = std::isfinite(op.result->norm) ? 1 : 0;
}

void adamw_step(const Stream& stream, const AdamWStep& op) {
  if (op.norm != nullptr && op.norm->finite == 0) return;
  const auto step = static_cast<double>(*op.step + 1);
  Scalars s{};
  s.clip = 1.0F;
  if (op.max_norm > 0) {
    s.clip = std::min(1.0F, static_cast<float>(op.max_norm) / (op.norm->norm + 1e-6F));
  }
  s.keep = static_cast<float>(1.0 - op.learning_rate * op.weight_decay);
  s.blend1 = static_cast<float>(1.0 - op.beta1);
  s.blend_from_end = s.blend1 >= 0.5F;
  s.beta2 = static_cast<float>(op.beta2);
  s.rest2 = static_cast<float>(1.0 - op.beta2);
  s.eps = static_cast<float>(op.eps);
  s.root2 = static_cast<float>(std::sqrt(1.0 - std::pow(op.beta2, step)));
  s.step_size = static_cast<float>(-(op.learning_rate / (1.0 - std::pow(op.beta1, step))));
  const std::vector<Chunk> chunks = chunks_of(op.tensors);
  parallel_for(stream.threads, static_cast<std::int64_t>(chunks.size()), 2,
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t i = first; i < last; ++i) {
                   const auto [tensor, begin, end] = chunks[static_cast<std::size_t>(i)];
                   update(s, tensor->weight + begin, tensor->gradient + begin,
                          tensor->exp_avg + begin, tensor->exp_avg_sq + begin, end - begin);
                   if (tensor->copy == nullptr) continue;
                   for (std::int64_t e = begin; e < end; ++e) {
                     if (tensor->copy_dtype == DType::bf16) {
                       row_of<Bf16>(tensor->copy, e)[0] = to_bf16(tensor->weight[e]);
                     } else {
                       row_of<float>(tensor->copy, e)[0] = tensor->weight[e];
                     }
                   }
                 }
               });
  *op.step += 1;
}

}  // namespace poros::cpu
