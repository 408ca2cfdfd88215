// SPDX-License-Identifier: Apache-2.0
#include "train/moe_layer.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/gated_activation.hpp"
#include "kernels/moe.hpp"
#include "train/linear_group.hpp"

namespace poros {
namespace {

/// Sizes of one call and the operands of an expert's rows.
class Experts {
 public:
  Experts(const StepContext& step_context, const MoeCall& moe_call)
      : context(step_context),
        call(moe_call),
        work(*context.work),
        moe(context.work->moe),
        shape(call.layer->shape->mlp),
        tokens(call.sweep->tokens),
        k(shape.experts_per_token),
        inner(shape.intermediate),
        hidden(call.hidden) {
    for (const ExpertWeights& expert : call.layer->experts) {
      in_rank = std::max(in_rank, expert.in.lora.rank);
      down_rank = std::max(down_rank, expert.down.lora.rank);
    }
  }

  [[nodiscard]] bool drops_input() const { return context.dropout > 0 && in_rank > 0; }
  [[nodiscard]] bool drops_down() const { return context.dropout > 0 && down_rank > 0; }

  [[nodiscard]] void* at(void* buffer, std::int64_t row, std::int64_t cols) const {
    return advance(buffer, context.dtype, row * cols);
  }

  /// Sorted rows in use, padding included, of the layer that was routed last.
  [[nodiscard]] std::int64_t sorted() const { return moe.host_offsets[call.layer->experts.size()]; }

  /// Rows offsets[expert] to offsets[expert + 1] of the sorted ones, whole granules: so that few
  /// row counts occur and every expert's operands have one alignment.
  template <typename Body>
  void for_each_expert(const Body& body) const {
    for (std::size_t expert = 0; expert < call.layer->experts.size(); ++expert) {
      const std::int64_t begin = moe.host_offsets[expert], end = moe.host_offsets[expert + 1];
      if (end > begin) body(call.layer->experts[expert], begin, end - begin);
    }
  }

  [[nodiscard]] LinearGroupCall in_call(const ExpertWeights& expert, std::int64_t begin,
                                        std::int64_t rows) const {
    LinearGroupCall linear;
    linear.group = &expert.in;
    linear.slab = call.slab;
    linear.rows = rows;
    linear.x = {at(moe.input, begin, hidden), hidden};
    linear.dropped = linear.x;
    if (drops_input()) linear.dropped = {at(moe.dropped_input, begin, hidden), hidden};
    linear.y[0] = {at(work.gate_up, begin, 2 * inner), 2 * inner};
    linear.y[1] = {advance(linear.y[0].data, context.dtype, inner), 2 * inner};
    linear.low_rank = {at(moe.low_rank_in, begin, in_rank), expert.in.lora.rank};
    return linear;
  }

  [[nodiscard]] LinearGroupCall down_call(const ExpertWeights& expert, std::int64_t begin,
                                          std::int64_t rows) const {
    LinearGroupCall linear;
    linear.group = &expert.down;
    linear.slab = call.slab;
    linear.rows = rows;
    linear.x = {at(work.activated, begin, inner), inner};
    linear.dropped = linear.x;
    if (drops_down()) linear.dropped = {at(work.dropped, begin, inner), inner};
    linear.y[0] = {at(moe.output, begin, hidden), hidden};
    linear.low_rank = {at(moe.low_rank_down, begin, down_rank), expert.down.lora.rank};
    return linear;
  }

  /// Key of each sorted row's mask before down: its token's micro-batch, and token * k + choice.
  void key_down_mask() const {
    moe_row_keys(context.stream, {.slot = moe.slot,
                                  .token_micro_batch = call.sweep->micro_batch,
                                  .token_row_index = call.sweep->row_index,
                                  .micro_batch = moe.micro_batch,
                                  .row_index = moe.row_index,
                                  .rows = sorted(),
                                  .k = k});
  }

  [[nodiscard]] Dropout down_mask(std::int64_t begin, std::int64_t rows) const {
    Dropout mask = site_mask(context, *call.sweep, call.layer->index, Site::mlp_down, inner);
    mask.rows = rows;
    mask.micro_batch = moe.micro_batch + begin;
    mask.row_index = moe.row_index + begin;
    return mask;
  }

  /// Rows of the sweep that are no tokens.
  void clear_padding(void* data, std::int64_t cols) const {
    const std::int64_t rows = call.sweep->rows - tokens;
    fill_bytes(context.stream, at(data, tokens, cols), 0,
               static_cast<std::uint64_t>(rows * cols) * bytes_of(context.dtype));
  }

  void combine(const void* sorted, const float* weights, void* y) const {
    moe_combine(context.stream, {.x = sorted,
                                 .position = moe.position,
                                 .weights = weights,
                                 .y = y,
                                 .tokens = tokens,
                                 .cols = hidden,
                                 .k = k,
                                 .dtype = context.dtype});
    clear_padding(y, hidden);
  }

  /// The experts' rows of a matrix of tokens; rows of padding are 0, and so are their products.
  void gather(const void* source, void* y) const {
    gather_rows(context.stream, {.source = source,
                                 .index = moe.token,
                                 .y = y,
                                 .rows = sorted(),
                                 .cols = hidden,
                                 .source_rows = call.sweep->rows,
                                 .source_dtype = context.dtype,
                                 .y_dtype = context.dtype,
                                 .negative_is_zero = true});
  }

  const StepContext& context;
  const MoeCall& call;
  Workspace& work;
  Workspace::Moe& moe;
  const MlpShape& shape;
  std::int64_t tokens, k, inner, hidden;
  std::int64_t in_rank = 0, down_rank = 0;  // largest of the layer's experts
};

GemmOperand router_operand(const Experts& experts, bool transposed) {
  const Linear& router = experts.call.layer->router;
  return {.data = weight_in_compute_dtype(experts.context, experts.call.slab, *router.weight,
                                          experts.work.weight)
                      .data,
          .dtype = experts.context.dtype,
          .stride = router.in,
          .transposed = transposed};
}

void route(const Experts& experts) {
  const StepContext& context = experts.context;
  Workspace::Moe& moe = experts.moe;
  const std::int64_t count = experts.shape.experts;
  context.gemm->multiply(
      {.a = {.data = experts.call.input, .dtype = context.dtype, .stride = experts.hidden},
       .b = router_operand(experts, true),
       .c = moe.logits,
       .c_dtype = context.dtype,
       .c_stride = count,
       .m = experts.call.sweep->rows,  // one of few row counts; more than the tokens is no harm
       .n = count,
       .k = experts.hidden});
  moe_route(context.stream, {.logits = moe.logits,
                             .probabilities = moe.probabilities,
                             .expert = moe.expert,
                             .weights = moe.weights,
                             .tokens = experts.tokens,
                             .experts = count,
                             .k = experts.k,
                             .dtype = context.dtype,
                             .weights_dtype = context.dtype,
                             .normalise = experts.shape.normalise_top_k});
  moe_sort(context.stream, {.expert = moe.expert,
                            .offsets = moe.offsets,
                            .slot = moe.slot,
                            .token = moe.token,
                            .position = moe.position,
                            .tokens = experts.tokens,
                            .experts = count,
                            .k = experts.k,
                            .granule = context.plan->expert_row_granule});
  // The one wait of a layer: the host has to know how many rows each product has.
  read_back(context.stream, moe.host_offsets.data(), moe.offsets,
            static_cast<std::uint64_t>(count + 1) * sizeof(std::int32_t));
}

void drop_down_input(const Experts& experts) {
  if (!experts.drops_down()) return;
  Dropout mask = experts.down_mask(0, experts.sorted());
  mask.x = experts.work.activated;
  mask.y = experts.work.dropped;
  dropout_forward(experts.context.stream, mask);
}

Dropout input_mask(const Experts& experts) {
  return site_mask(experts.context, *experts.call.sweep, experts.call.layer->index, Site::mlp_in,
                   experts.hidden);
}

}  // namespace

void moe_forward(const StepContext& context, const MoeCall& call) {
  const Experts experts(context, call);
  Workspace& work = experts.work;
  if (call.layer->router.bias != nullptr) {
    fail(Fault::run, "layer {}: a router with a bias is not supported", call.layer->index);
  }
  route(experts);
  experts.gather(call.input, work.moe.input);
  if (experts.drops_input()) {
    Dropout mask = input_mask(experts);
    mask.x = call.input;
    mask.y = work.dropped;
    dropout_forward(context.stream, mask);
    experts.gather(work.dropped, work.moe.dropped_input);
  }
  experts.for_each_expert([&](const ExpertWeights& expert, std::int64_t begin, std::int64_t rows) {
    linear_group_forward(context, experts.in_call(expert, begin, rows));
  });
  const std::int64_t inner = experts.inner;
  gated_activation_forward(context.stream, {.gate = work.gate_up,
                                            .up = advance(work.gate_up, context.dtype, inner),
                                            .y = work.activated,
                                            .rows = experts.sorted(),
                                            .cols = inner,
                                            .gate_stride = 2 * inner,
                                            .up_stride = 2 * inner,
                                            .dtype = context.dtype,
                                            .function = gate_function(experts.shape)});
  if (experts.drops_down()) experts.key_down_mask();
  drop_down_input(experts);
  experts.for_each_expert([&](const ExpertWeights& expert, std::int64_t begin, std::int64_t rows) {
    linear_group_forward(context, experts.down_call(expert, begin, rows));
  });
  if (call.output != nullptr) {
    experts.combine(work.moe.output, work.moe.weights, call.output);
  }
}

void moe_backward(const StepContext& context, const MoeCall& call, void* input_gradient) {
  const Experts experts(context, call);
  Workspace& work = experts.work;
  Workspace::Moe& moe = work.moe;
  moe_combine_backward(context.stream, {.dy = call.output,
                                        .x = moe.output,
                                        .position = moe.position,
                                        .weights = moe.weights,
                                        .dx = moe.output,
                                        .dweights = moe.weight_gradients,
                                        .tokens = experts.tokens,
                                        .cols = experts.hidden,
                                        .k = experts.k,
                                        .dy_stride = context.gradient_stride,
                                        .dtype = context.dtype});
  drop_down_input(experts);
  const std::int64_t inner = experts.inner, hidden = experts.hidden;
  experts.for_each_expert([&](const ExpertWeights& expert, std::int64_t begin, std::int64_t rows) {
    InputGradient gradient;
    gradient.dx = {experts.at(work.activated, begin, inner), inner};
    gradient.low_rank_gradient = {moe.low_rank_gradient, expert.down.lora.rank};
    if (experts.drops_down() && expert.down.lora.rank > 0) {
      gradient.dropped_gradient = work.dropped_gradient;
      gradient.mask = experts.down_mask(begin, rows);
    }
    linear_group_backward(context, experts.down_call(expert, begin, rows), gradient);
  });
  void* up = advance(work.gate_up, context.dtype, inner);
  gated_activation_backward(context.stream, {.dy = work.activated,
                                             .gate = work.gate_up,
                                             .up = up,
                                             .dgate = work.gate_up,
                                             .dup = up,
                                             .rows = experts.sorted(),
                                             .cols = inner,
                                             .gate_stride = 2 * inner,
                                             .up_stride = 2 * inner,
                                             .dtype = context.dtype,
                                             .function = gate_function(experts.shape)});

  // The low-rank part of the input's gradient goes through the mask after the experts are joined.
  if (experts.drops_input()) {
    fill_bytes(context.stream, work.dropped_gradient, 0,
               static_cast<std::uint64_t>(experts.sorted() * hidden) * bytes_of(context.dtype));
  }
  experts.for_each_expert([&](const ExpertWeights& expert, std::int64_t begin, std::int64_t rows) {
    InputGradient gradient;
    gradient.dx = {experts.at(moe.input, begin, hidden), hidden};  // in the input's place
    gradient.low_rank_gradient = {moe.low_rank_gradient, expert.in.lora.rank};
    if (experts.drops_input()) {
      gradient.dropped_gradient = experts.at(work.dropped_gradient, begin, hidden);
      gradient.leave_mask = true;
    }
    linear_group_backward(context, experts.in_call(expert, begin, rows), gradient);
  });
  experts.combine(moe.input, nullptr, input_gradient);
  if (experts.drops_input()) {
    experts.combine(work.dropped_gradient, nullptr, work.dropped);
    Dropout mask = input_mask(experts);
    mask.x = work.dropped;
    mask.y = input_gradient;
    mask.accumulate = true;
    dropout_backward(context.stream, mask);
  }

  const std::int64_t count = experts.shape.experts;
  moe_route_backward(context.stream, {.probabilities = moe.probabilities,
                                      .expert = moe.expert,
                                      .dweights = moe.weight_gradients,
                                      .dlogits = moe.logits,
                                      .tokens = experts.tokens,
                                      .experts = count,
                                      .k = experts.k,
                                      .dtype = context.dtype,
                                      .normalise = experts.shape.normalise_top_k});
  experts.clear_padding(moe.logits, count);
  context.gemm->multiply({.a = {.data = moe.logits, .dtype = context.dtype, .stride = count},
                          .b = router_operand(experts, false),
                          .c = input_gradient,
                          .c_dtype = context.dtype,
                          .c_stride = hidden,
                          .m = call.sweep->rows,
                          .n = hidden,
                          .k = count,
                          .beta = 1.0F});
}

}  // namespace poros
