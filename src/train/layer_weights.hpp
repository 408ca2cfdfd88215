// SPDX-License-Identifier: Apache-2.0
// A decoder layer as the executor runs it: which tensor of the slab each linear and norm is, and
// which part of the flat adapter buffers belongs to it.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/low_rank.hpp"
#include "kernels/rms_norm.hpp"
#include "model/adapter.hpp"
#include "model/base_store.hpp"
#include "plan/layer_roles.hpp"
#include "plan/memory_plan.hpp"
#include "train/workspace.hpp"

namespace poros {

/// The LoRA branch of one linear. y += scale * (xd A^T) B^T
struct LoraBranch {
  std::int64_t rank = 0, out = 0;
  std::int64_t column = 0;  // first of its columns in the site's low-rank product
  float scale = 0;
  const void* b = nullptr;  // in compute dtype, [out, rank] or, turned, [rank, out]
  bool turned = false;
  float* b_gradient = nullptr;  // [out, rank]
};

/// The branches of one input site; their A matrices are one matrix [rank, in].
struct LoraSite {
  std::int64_t rank = 0, in = 0;
  bool thin = false;        // its thin products are kernels of their own (kernels/low_rank.hpp)
  const void* a = nullptr;  // in compute dtype
  float* a_gradient = nullptr;
  std::vector<LoraBranch> branches;
};

struct Linear {
  const TensorPlace* weight = nullptr;
  const TensorPlace* bias = nullptr;  // or null
  std::int64_t out = 0, in = 0;
  int branch = -1;  // index into the site's branches; -1: not adapted
};

/// The linears of one input site.
struct LinearGroup {
  Site site = Site::attention_in;
  std::int64_t in = 0;
  std::vector<Linear> linears;  // q, k, v | qkv | o | gate, up | gate_up | down
  LoraSite lora;
};

struct ExpertWeights {
  LinearGroup in, down;
};

struct LayerWeights {
  std::int64_t index = 0;
  const LayerShape* shape = nullptr;
  LinearGroup attention_in, attention_out;
  LinearGroup mlp_in, mlp_down;  // dense
  Linear router;                 // mixture of experts
  std::vector<ExpertWeights> experts;
  // Norm weights; those that the architecture has not are null.
  const TensorPlace *attention_norm = nullptr, *mlp_norm = nullptr, *q_norm = nullptr,
                    *k_norm = nullptr, *post_attention_norm = nullptr, *post_mlp_norm = nullptr;
};

/// Where compute-dtype adapters and gradients lie, flat.
struct FlatAdapter {
  const void* compute = nullptr;  // in compute dtype
  bool by_layer = false;          // compute holds one layer's at a time, from its begin on
  float* gradient = nullptr;
  bool thin = false;  // on CUDA with bf16: dense sites whose sizes fit use the thin products
};

/// @throws Error(Fault::run) when the layout lacks a tensor that the shape implies
[[nodiscard]] std::vector<LayerWeights> describe_layers(const BaseStore& base,
                                                        const std::vector<LoraPlace>& places,
                                                        const MemoryPlan& memory,
                                                        const FlatAdapter& adapter, DType dtype);

/// A matrix that is read.
struct ConstMatrix {
  const void* data = nullptr;
  std::int64_t stride = 0;
};

/// What LoRA's products want around a weight that is converted.
struct AroundWeight {
  std::int64_t padding = 0;     // columns more behind each row
  LowRankColumns columns = {};  // what they hold: b, rank, first, turned and scale; rank 0: nothing
  const void* below = nullptr;  // values in compute dtype for right behind the last row
  std::int64_t below_count = 0;
};

/// A tensor of a slab in compute dtype: where it lies when it is stored so, else converted into
/// `scratch`, with what is wanted around it.
[[nodiscard]] ConstMatrix weight_in_compute_dtype(const StepContext& context, const std::byte* slab,
                                                  const TensorPlace& place, void* scratch,
                                                  const AroundWeight& around = {});

/// Whether weight_in_compute_dtype writes the tensor to its scratch.
[[nodiscard]] bool is_converted(const StepContext& context, const TensorPlace& place);

/// DType of a stored vector (norm, bias). @throws Error(Fault::run) for nf4
[[nodiscard]] DType storage_dtype(const TensorPlace& place);

}  // namespace poros
