// SPDX-License-Identifier: Apache-2.0
// Attention by FlashAttention-2 inside LibTorch, for what it covers (numerical_plan.cpp says
// where): CUDA, bf16, head_dim up to 256, no soft-cap. Documents are given by their offsets, padded
// to a fixed number, so that launch shapes and temporaries don't depend on the data.
#pragma once

#include "kernels/rotary.hpp"
#include "train/attention_blocked.hpp"

namespace poros {

class FlashAttention {
 public:
  virtual ~FlashAttention() = default;

  virtual void forward(const StepContext& context, const AttentionCall& call) = 0;

  /// Of the forward that ran last, whose output the call still holds.
  /// @param output_gradient [rows, heads * head_dim]
  /// @param qkv_gradient    [rows, columns of qkv], gradient_stride; padding rows become 0
  /// @param rotary          takes the gradients of q and k through the rotation on the way (its x,
  ///                        source, heads and strides are filled here); null: not
  virtual void backward(const StepContext& context, const AttentionCall& call,
                        const void* output_gradient, void* qkv_gradient, const Rotary* rotary) = 0;
};

}  // namespace poros
