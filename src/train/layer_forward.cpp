// SPDX-License-Identifier: Apache-2.0
#include "kernels/elementwise.hpp"
#include "kernels/gated_activation.hpp"
#include "train/attention_blocked.hpp"
#include "train/attention_flash.hpp"
#include "train/layer.hpp"
#include "train/linear_group.hpp"

namespace poros {

void* LayerRunner::mlp_branch() const {
  // Both branches of a layer wait for the backward only where norms stand behind them.
  Workspace& work = *context_.work;
  return architecture_.post_norms ? work.branch_mlp : work.branch;
}

void LayerRunner::norm(const TensorPlace& weight, const std::byte* slab, const void* x,
                       const void* residual, void* residual_out, void* y, float* rstd,
                       std::int64_t y_stride) {
  rms_norm_forward(
      context_.stream,
      {.x = x,
       .residual = residual,
       .residual_out = residual_out,
       .weight = slab + weight.offset,
       .y = y,
       .rstd = rstd,
       .rows = sweep_.rows,
       .cols = hidden(),
       .y_stride = y_stride,
       .dtype = context_.dtype,
       .weight_dtype = storage_dtype(weight),
       .weight_kind = architecture_.norm_plus_one ? NormWeight::plus_one : NormWeight::plain,
       .eps = architecture_.rms_eps});
}

LinearGroupCall LayerRunner::group_call(const LinearGroup& group, const std::byte* slab,
                                        void* x) const {
  LinearGroupCall call;
  call.group = &group;
  call.slab = slab;
  call.rows = sweep_.rows;
  call.x = {x, input_stride(group)};
  call.dropped = call.x;
  call.low_rank = {advance(x, context_.dtype, group.in), call.x.stride};
  return call;
}

void LayerRunner::drop_input(const LayerWeights& layer, LinearGroupCall& call) {
  if (context_.dropout == 0 || call.group->lora.rank == 0) return;
  Dropout mask = site_mask(context_, sweep_, layer.index, call.group->site, call.group->in);
  mask.x = call.x.data;
  mask.x_stride = call.x.stride;
  mask.y = context_.work->dropped;
  mask.y_stride = call.group->in;
  dropout_forward(context_.stream, mask);
  call.dropped = {context_.work->dropped, call.group->in};
}

Rotary LayerRunner::rotary_of(const LayerWeights& layer, void* qkv, std::int64_t stride) const {
  const AttentionShape& shape = layer.shape->attention;
  const auto table = static_cast<std::size_t>(shape.rope_table);
  const RotaryTable& rotary = context_.work->rotary[table];
  return {.x = qkv,
          .positions = sweep_.positions[table],
          .cos = rotary.cos,
          .sin = rotary.sin,
          .rows = sweep_.rows,
          .heads = shape.heads + shape.kv_heads,
          .head_dim = shape.head_dim,
          .rotary_dim = shape.rotary_dim,
          .row_stride = stride,
          .table_positions = rotary.rows,
          .dtype = context_.dtype};
}

void LayerRunner::forward_attention(const LayerWeights& layer, const std::byte* slab,
                                    const void* input) {
  Workspace& work = *context_.work;
  const AttentionShape& shape = layer.shape->attention;
  const std::int64_t query = shape.heads * shape.head_dim, key = shape.kv_heads * shape.head_dim;
  const std::int64_t stride = query + 2 * key;
  norm(*layer.attention_norm, slab, input, nullptr, nullptr, work.norm_attention,
       work.norm_attention_rstd, input_stride(layer.attention_in));

  LinearGroupCall in = group_call(layer.attention_in, slab, work.norm_attention);
  const auto qkv_at = [&](std::int64_t column) {
    return Matrix{advance(work.qkv, context_.dtype, column), stride};
  };
  in.y = {qkv_at(0), qkv_at(query), qkv_at(query + key)};
  if (shape.qk_norm) {
    in.y[0] = {work.qk_raw, query + key};
    in.y[1] = {advance(work.qk_raw, context_.dtype, query), query + key};
  }
  drop_input(layer, in);
  linear_group_forward(context_, in);

  if (shape.qk_norm) {
    const auto normalise = [&](const TensorPlace& weight, std::int64_t column, std::int64_t heads,
                               float* rstd) {
      rms_norm_forward(
          context_.stream,
          {.x = advance(work.qk_raw, context_.dtype, column),
           .weight = slab + weight.offset,
           .y = advance(work.qkv, context_.dtype, column),
           .rstd = rstd,
           .rows = sweep_.rows,
           .cols = shape.head_dim,
           .groups = heads,
           .x_stride = query + key,
           .y_stride = stride,
           .dtype = context_.dtype,
           .weight_dtype = storage_dtype(weight),
           .weight_kind = architecture_.norm_plus_one ? NormWeight::plus_one : NormWeight::plain,
           .eps = architecture_.rms_eps});
    };
    normalise(*layer.q_norm, 0, shape.heads, work.q_rstd);
    normalise(*layer.k_norm, query, shape.kv_heads, work.k_rstd);
  }
  rotary_forward(context_.stream, rotary_of(layer, work.qkv, stride));
  LinearGroupCall out = group_call(layer.attention_out, slab, work.attention);
  const AttentionCall attention = {&shape, &sweep_, work.qkv, work.attention, out.x.stride};
  if (uses_flash(layer)) {
    context_.flash->forward(context_, attention);
  } else {
    attention_blocked_forward(context_, attention);
  }

  out.y[0] = {work.branch, hidden()};
  drop_input(layer, out);
  linear_group_forward(context_, out);

  const void* branch = work.branch;
  if (layer.post_attention_norm != nullptr) {
    norm(*layer.post_attention_norm, slab, work.branch, nullptr, nullptr, work.norm_gradient,
         work.post_attention_rstd);
    branch = work.norm_gradient;
  }
  norm(*layer.mlp_norm, slab, branch, input, work.middle, work.norm_mlp, work.norm_mlp_rstd,
       layer.experts.empty() ? input_stride(layer.mlp_in) : hidden());
}

MoeCall LayerRunner::moe_call(const LayerWeights& layer, const std::byte* slab,
                              void* output) const {
  return {&layer, slab, &sweep_, hidden(), context_.work->norm_mlp, output};
}

void LayerRunner::forward_mlp(const LayerWeights& layer, const std::byte* slab, bool with_down,
                              void* sum) {
  Workspace& work = *context_.work;
  work.begin_mlp();
  if (!layer.experts.empty()) {
    moe_forward(context_, moe_call(layer, slab, with_down ? mlp_branch() : nullptr));
    return;
  }
  const std::int64_t inner = layer.shape->mlp.intermediate, stride = gate_up_stride(layer);
  LinearGroupCall in = group_call(layer.mlp_in, slab, work.norm_mlp);
  void* up = advance(work.gate_up, context_.dtype, inner);
  in.y[0] = {work.gate_up, stride};
  in.y[1] = {up, stride};
  drop_input(layer, in);
  linear_group_forward(context_, in);
  gated_activation_forward(context_.stream, {.gate = work.gate_up,
                                             .up = up,
                                             .y = work.activated,
                                             .rows = sweep_.rows,
                                             .cols = inner,
                                             .gate_stride = stride,
                                             .up_stride = stride,
                                             .y_stride = input_stride(layer.mlp_down),
                                             .dtype = context_.dtype,
                                             .function = gate_function(layer.shape->mlp)});

  LinearGroupCall down = group_call(layer.mlp_down, slab, work.activated);
  down.y[0] = {mlp_branch(), hidden()};
  if (sum != nullptr) {
    down.y[0].data = sum;
    down.addend = {work.middle, hidden()};
  }
  drop_input(layer, down);
  if (with_down) {
    linear_group_forward(context_, down);
  } else {
    low_rank_forward(context_, down);
  }
}

void LayerRunner::forward(const LayerWeights& layer, const std::byte* slab, const void* input,
                          void* output) {
  Workspace& work = *context_.work;
  forward_attention(layer, slab, input);
  const bool sums = layer.experts.empty() && layer.post_mlp_norm == nullptr;
  forward_mlp(layer, slab, true, sums ? output : nullptr);
  work.give_back();
  if (sums) return;
  const void* branch = mlp_branch();
  if (layer.post_mlp_norm != nullptr) {
    norm(*layer.post_mlp_norm, slab, branch, nullptr, nullptr, work.norm_gradient,
         work.post_mlp_rstd);
    branch = work.norm_gradient;
  }
  add_rows(context_.stream, {.a = work.middle,
                             .b = branch,
                             .y = output,
                             .rows = sweep_.rows,
                             .cols = hidden(),
                             .a_dtype = context_.dtype,
                             .b_dtype = context_.dtype,
                             .y_dtype = context_.dtype});
}

}  // namespace poros
