// SPDX-License-Identifier: Apache-2.0
#include "kernels/gated_activation.hpp"
#include "train/attention_blocked.hpp"
#include "train/attention_flash.hpp"
#include "train/layer.hpp"
#include "train/linear_group.hpp"

namespace poros {

void LayerRunner::norm_backward(const TensorPlace& weight, const std::byte* slab, const void* dy,
                                std::int64_t dy_stride, const void* r, const float* rstd,
                                const void* residual_gradient, void* dx) {
  rms_norm_backward(
      context_.stream,
      {.dy = dy,
       .r = r,
       .weight = slab + weight.offset,
       .rstd = rstd,
       .residual_gradient = residual_gradient,
       .dx = dx,
       .rows = sweep_.rows,
       .cols = hidden(),
       .dy_stride = dy_stride,
       .r_stride = hidden(),
       .dx_stride = context_.gradient_stride,
       .dtype = context_.dtype,
       .weight_dtype = storage_dtype(weight),
       .weight_kind = architecture_.norm_plus_one ? NormWeight::plus_one : NormWeight::plain});
}

InputGradient LayerRunner::input_gradient(const LayerWeights& layer, const LinearGroupCall& call,
                                          Matrix dx) {
  const LinearGroup& group = *call.group;
  const Matrix& dy = call.y[group.linears.size() - 1];
  InputGradient gradient;
  gradient.dx = dx;
  gradient.low_rank_gradient = {advance(dy.data, context_.dtype, group.linears.back().out),
                                dy.stride};
  if (context_.dropout > 0 && group.lora.rank > 0) {
    gradient.dropped_gradient = context_.work->dropped_gradient;
    gradient.mask = site_mask(context_, sweep_, layer.index, group.site, group.in);
  }
  return gradient;
}

void LayerRunner::backward_mlp(const LayerWeights& layer, const std::byte* slab, void* gradient) {
  Workspace& work = *context_.work;
  void* branch_gradient = gradient;
  if (layer.post_mlp_norm != nullptr) {
    branch_gradient = work.branch_gradient;
    norm_backward(*layer.post_mlp_norm, slab, gradient, context_.gradient_stride, work.branch_mlp,
                  work.post_mlp_rstd, nullptr, branch_gradient);
  }
  if (!layer.experts.empty()) {
    moe_backward(context_, moe_call(layer, slab, branch_gradient), work.norm_gradient);
  } else {
    const std::int64_t inner = layer.shape->mlp.intermediate, stride = gate_up_stride(layer);
    LinearGroupCall down = group_call(layer.mlp_down, slab, work.activated);
    down.y[0] = {branch_gradient, context_.gradient_stride};
    drop_input(layer, down);
    linear_group_backward(context_, down, input_gradient(layer, down, down.x));

    void* up = advance(work.gate_up, context_.dtype, inner);
    gated_activation_backward(context_.stream, {.dy = work.activated,
                                                .gate = work.gate_up,
                                                .up = up,
                                                .dgate = work.gate_up,
                                                .dup = up,
                                                .rows = sweep_.rows,
                                                .cols = inner,
                                                .dy_stride = down.x.stride,
                                                .gate_stride = stride,
                                                .up_stride = stride,
                                                .dtype = context_.dtype,
                                                .function = gate_function(layer.shape->mlp)});

    LinearGroupCall in = group_call(layer.mlp_in, slab, work.norm_mlp);
    in.y[0] = {work.gate_up, stride};
    in.y[1] = {up, stride};
    drop_input(layer, in);
    linear_group_backward(context_, in, input_gradient(layer, in, {work.norm_gradient, hidden()}));
  }
  work.give_back();
  norm_backward(*layer.mlp_norm, slab, work.norm_gradient, hidden(), work.middle,
                work.norm_mlp_rstd, gradient, gradient);
}

void LayerRunner::backward_attention(const LayerWeights& layer, const std::byte* slab,
                                     const void* input, void* gradient, bool wants_input_gradient) {
  Workspace& work = *context_.work;
  const AttentionShape& shape = layer.shape->attention;
  const std::int64_t query = shape.heads * shape.head_dim, key = shape.kv_heads * shape.head_dim;
  const std::int64_t stride = qkv_gradient_stride(layer);
  void* branch_gradient = gradient;
  if (layer.post_attention_norm != nullptr) {
    branch_gradient = work.branch_gradient;
    norm_backward(*layer.post_attention_norm, slab, gradient, context_.gradient_stride, work.branch,
                  work.post_attention_rstd, nullptr, branch_gradient);
  }
  work.begin_attention_gradient();
  LinearGroupCall out = group_call(layer.attention_out, slab, work.attention);
  out.y[0] = {branch_gradient, context_.gradient_stride};
  drop_input(layer, out);
  linear_group_backward(context_, out,
                        input_gradient(layer, out, {work.attention_gradient, query}));

  const AttentionCall attention = {&shape, &sweep_, work.qkv, work.attention, out.x.stride, stride};
  const Rotary rotary = rotary_of(layer, work.qkv_gradient, stride);
  const bool turns_all = shape.rotary_dim == shape.head_dim;
  if (uses_flash(layer)) {
    context_.flash->backward(context_, attention, work.attention_gradient, work.qkv_gradient,
                             turns_all ? &rotary : nullptr);
  } else {
    attention_blocked_backward(context_, attention, work.attention_gradient, work.qkv_gradient);
  }
  if (!uses_flash(layer) || !turns_all) rotary_backward(context_.stream, rotary);
  if (shape.qk_norm) {
    const auto differentiate = [&](const TensorPlace& weight, std::int64_t column,
                                   std::int64_t heads, const float* rstd) {
      void* at = advance(work.qkv_gradient, context_.dtype, column);
      rms_norm_backward(
          context_.stream,
          {.dy = at,
           .r = advance(work.qk_raw, context_.dtype, column),
           .weight = slab + weight.offset,
           .rstd = rstd,
           .dx = at,
           .rows = sweep_.rows,
           .cols = shape.head_dim,
           .groups = heads,
           .dy_stride = stride,
           .r_stride = query + key,
           .dx_stride = stride,
           .dtype = context_.dtype,
           .weight_dtype = storage_dtype(weight),
           .weight_kind = architecture_.norm_plus_one ? NormWeight::plus_one : NormWeight::plain});
    };
    differentiate(*layer.q_norm, 0, shape.heads, work.q_rstd);
    differentiate(*layer.k_norm, query, shape.kv_heads, work.k_rstd);
  }

  LinearGroupCall in = group_call(layer.attention_in, slab, work.norm_attention);
  const auto gradient_at = [&](std::int64_t column) {
    return Matrix{advance(work.qkv_gradient, context_.dtype, column), stride};
  };
  in.y = {gradient_at(0), gradient_at(query), gradient_at(query + key)};
  drop_input(layer, in);
  linear_group_backward(
      context_, in,
      input_gradient(layer, in, {wants_input_gradient ? work.norm_gradient : nullptr, hidden()}));
  work.give_back();
  if (!wants_input_gradient) return;
  norm_backward(*layer.attention_norm, slab, work.norm_gradient, hidden(), input,
                work.norm_attention_rstd, gradient, gradient);
}

void LayerRunner::backward(const LayerWeights& layer, const std::byte* slab, const void* input,
                           void* gradient, bool wants_input_gradient) {
  Workspace& work = *context_.work;
  forward_attention(layer, slab, input);
  const bool post_norm = layer.post_mlp_norm != nullptr;
  forward_mlp(layer, slab, post_norm);
  if (post_norm) {
    norm(*layer.post_mlp_norm, slab, work.branch_mlp, nullptr, nullptr, work.norm_gradient,
         work.post_mlp_rstd);
  }
  backward_mlp(layer, slab, gradient);
  backward_attention(layer, slab, input, gradient, wants_input_gradient);
}

}  // namespace poros
