// SPDX-License-Identifier: Apache-2.0
// One decoder layer, forward and backward by hand. The forward keeps nothing but the layer's input;
// the backward makes the rest again (down_proj's output only where a norm stands behind it).
//   n1 = norm(x)            qkv = W_qkv n1     a = attention(rotary(qk_norm(q, k)), v)
//   m  = x + post(W_o a)    n2 = norm(m)       out = m + post(W_down act(W_gate_up n2))
// The residual stream is in compute dtype and each norm reads the rounded value.
#pragma once

#include "kernels/rotary.hpp"
#include "model/architecture.hpp"
#include "train/layer_weights.hpp"
#include "train/linear_group.hpp"
#include "train/moe_layer.hpp"
#include "train/workspace.hpp"

namespace poros {

class LayerRunner {
 public:
  LayerRunner(const StepContext& context, const Architecture& architecture,
              const SweepTokens& sweep)
      : context_(context), architecture_(architecture), sweep_(sweep) {}

  /// @param slab   the layer's bytes
  /// @param input  [rows, hidden], not changed
  /// @param output [rows, hidden]
  void forward(const LayerWeights& layer, const std::byte* slab, const void* input, void* output);

  /// @param gradient [rows, hidden], context's gradient_stride. In: of the layer's output; out: of
  ///                 its input (left undefined with wants_input_gradient false: below the first
  ///                 layer nothing learns)
  void backward(const LayerWeights& layer, const std::byte* slab, const void* input, void* gradient,
                bool wants_input_gradient);

 private:
  /// n1, qkv, attention, the middle of the residual stream, n2.
  void forward_attention(const LayerWeights& layer, const std::byte* slab, const void* input);
  /// The MLP up to its activation, or with `with_down` to its output in mlp_branch(). With `sum` a
  /// dense MLP's output goes there, the middle of the residual stream added by the same product.
  void forward_mlp(const LayerWeights& layer, const std::byte* slab, bool with_down,
                   void* sum = nullptr);
  /// In: gradient of the layer's output. Out: gradient of the middle.
  void backward_mlp(const LayerWeights& layer, const std::byte* slab, void* gradient);
  /// In: gradient of the middle. Out: gradient of the layer's input.
  void backward_attention(const LayerWeights& layer, const std::byte* slab, const void* input,
                          void* gradient, bool wants_input_gradient);

  [[nodiscard]] MoeCall moe_call(const LayerWeights& layer, const std::byte* slab,
                                 void* output) const;
  [[nodiscard]] std::int64_t hidden() const { return architecture_.hidden; }
  [[nodiscard]] void* mlp_branch() const;
  [[nodiscard]] bool uses_flash(const LayerWeights& layer) const {
    return context_.plan->attention[static_cast<std::size_t>(layer.index)] == AttentionPath::flash;
  }
  /// q and k of qkv, or their gradients.
  [[nodiscard]] Rotary rotary_of(const LayerWeights& layer, void* qkv, std::int64_t stride) const;
  void norm(const TensorPlace& weight, const std::byte* slab, const void* x, const void* residual,
            void* residual_out, void* y, float* rstd, std::int64_t y_stride = 0);
  /// Of dy to dx, which has the residual stream's gradients' stride.
  void norm_backward(const TensorPlace& weight, const std::byte* slab, const void* dy,
                     std::int64_t dy_stride, const void* r, const float* rstd,
                     const void* residual_gradient, void* dx);
  /// A group on its dense input x, x A^T behind it.
  LinearGroupCall group_call(const LinearGroup& group, const std::byte* slab, void* x) const;
  /// Elements from row to row of a dense site's input.
  [[nodiscard]] static std::int64_t input_stride(const LinearGroup& group) {
    return group.in + lora_padding(group.lora.rank);
  }
  /// Elements from row to row of gate, up and their gradients, and of those of q, k, v.
  [[nodiscard]] static std::int64_t gate_up_stride(const LayerWeights& layer) {
    return 2 * layer.shape->mlp.intermediate + lora_padding(layer.mlp_in.lora.rank);
  }
  [[nodiscard]] static std::int64_t qkv_gradient_stride(const LayerWeights& layer) {
    const AttentionShape& shape = layer.shape->attention;
    return (shape.heads + 2 * shape.kv_heads) * shape.head_dim +
           lora_padding(layer.attention_in.lora.rank);
  }
  /// Writes xd of an adapted site to work->dropped where dropout is on.
  void drop_input(const LayerWeights& layer, LinearGroupCall& call);
  /// s B^T dy goes behind the last linear's dy.
  InputGradient input_gradient(const LayerWeights& layer, const LinearGroupCall& call, Matrix dx);

  const StepContext& context_;
  const Architecture& architecture_;
  const SweepTokens& sweep_;
};

}  // namespace poros
