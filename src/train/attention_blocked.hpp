// SPDX-License-Identifier: Apache-2.0
// Attention by tiles of query rows, memory linear in the sequence: scores of a tile, masked softmax
// (documents, causal, window, soft-cap), values. The backward makes the probabilities again.
// Grouped key/value heads; softmax and sums in fp32.
#pragma once

#include "model/architecture.hpp"
#include "train/linear_group.hpp"
#include "train/workspace.hpp"

namespace poros {

/// q, k, v side by side in one buffer: [rows, (heads + 2 kv_heads) * head_dim].
struct AttentionCall {
  const AttentionShape* shape = nullptr;
  const SweepTokens* sweep = nullptr;
  const void* qkv = nullptr;
  void* output = nullptr;            // [rows, heads * head_dim]; padding rows become 0
  std::int64_t output_stride = 0;    // [elements]
  std::int64_t gradient_stride = 0;  // backward: of qkv_gradient [elements]
};

void attention_blocked_forward(const StepContext& context, const AttentionCall& call);

/// @param output_gradient [rows, heads * head_dim]
/// @param qkv_gradient    [rows, columns of qkv], gradient_stride
void attention_blocked_backward(const StepContext& context, const AttentionCall& call,
                                const void* output_gradient, void* qkv_gradient);

}  // namespace poros
