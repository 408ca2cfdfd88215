// SPDX-License-Identifier: Apache-2.0
#include "train/linear_group.hpp"

#include <algorithm>

#include "kernels/elementwise.hpp"
#include "kernels/low_rank.hpp"

namespace poros {
namespace {

GemmOperand operand(const StepContext& context, const Matrix& matrix) {
  return {.data = matrix.data, .dtype = context.dtype, .stride = matrix.stride};
}

GemmOperand contiguous(const StepContext& context, const void* data, std::int64_t cols,
                       bool transposed = false) {
  return {.data = data, .dtype = context.dtype, .stride = cols, .transposed = transposed};
}

/// C[m, n] += alpha * P^T Q over the rows of P [rows, m] and Q [rows, n], group by group.
void accumulate_outer(const StepContext& context, const Matrix& p, std::int64_t m, const Matrix& q,
                      std::int64_t n, std::int64_t rows, float alpha, float* c) {
  const std::int64_t group = context.plan->gradient_group_rows;
  for (std::int64_t begin = 0; begin < rows; begin += group) {
    GemmOperand a = operand(context, p), b = operand(context, q);
    a.data = advance(a.data, context.dtype, begin * p.stride);
    b.data = advance(b.data, context.dtype, begin * q.stride);
    a.transposed = true;
    context.gemm->multiply({.a = a,
                            .b = b,
                            .c = c,
                            .c_stride = n,
                            .m = m,
                            .n = n,
                            .k = std::min(group, rows - begin),
                            .alpha = alpha,
                            .beta = 1.0F});
  }
}

/// B of a branch, [out, rank], or its transpose.
GemmOperand b_operand(const StepContext& context, const LoraBranch& branch, bool transposed) {
  if (branch.turned) return contiguous(context, branch.b, branch.out, !transposed);
  return contiguous(context, branch.b, branch.rank, transposed);
}

/// s B^T dy of each branch, then dB and dA, by products of the general kind.
void low_rank_backward(const StepContext& context, const LinearGroupCall& call,
                       const InputGradient& gradient) {
  const LinearGroup& group = *call.group;
  const LoraSite& lora = group.lora;
  for (std::size_t index = 0; index < group.linears.size(); ++index) {
    const Linear& linear = group.linears[index];
    if (linear.branch < 0) continue;
    const LoraBranch& branch = lora.branches[static_cast<std::size_t>(linear.branch)];
    const Matrix& dy = call.y[index];
    context.gemm->multiply(
        {.a = operand(context, dy),
         .b = b_operand(context, branch, false),
         .c = advance(gradient.low_rank_gradient.data, context.dtype, branch.column),
         .c_dtype = context.dtype,
         .c_stride = gradient.low_rank_gradient.stride,
         .m = call.rows,
         .n = branch.rank,
         .k = linear.out,
         .alpha = branch.scale});
    const Matrix low_rank = {advance(call.low_rank.data, context.dtype, branch.column),
                             call.low_rank.stride};
    accumulate_outer(context, dy, linear.out, low_rank, branch.rank, call.rows, branch.scale,
                     branch.b_gradient);
  }
  accumulate_outer(context, gradient.low_rank_gradient, lora.rank, call.dropped, group.in,
                   call.rows, 1.0F, lora.a_gradient);
}

/// The same by thin products: two launches for all branches of the site.
void thin_backward(const StepContext& context, const LinearGroupCall& call,
                   const InputGradient& gradient) {
  const LinearGroup& group = *call.group;
  const LoraSite& lora = group.lora;
  LowRankProject project{.rows = call.rows, .dtype = context.dtype};
  LowRankOuter outer{.rows = call.rows, .dtype = context.dtype};
  // dA first: its blocks, which have the whole rank of the site, take longest.
  outer.parts[static_cast<std::size_t>(outer.count++)] = {
      .x = call.dropped.data,
      .p = gradient.low_rank_gradient.data,
      .c = lora.a_gradient,
      .width = group.in,
      .rank = lora.rank,
      .x_stride = call.dropped.stride,
      .p_stride = gradient.low_rank_gradient.stride,
      .row = 1,
      .column = group.in};
  for (std::size_t index = 0; index < group.linears.size(); ++index) {
    const Linear& linear = group.linears[index];
    if (linear.branch < 0) continue;
    const LoraBranch& branch = lora.branches[static_cast<std::size_t>(linear.branch)];
    const Matrix& dy = call.y[index];
    project.parts[static_cast<std::size_t>(project.count++)] = {
        .x = dy.data,
        .w = branch.b,
        .y = advance(gradient.low_rank_gradient.data, context.dtype, branch.column),
        .width = linear.out,
        .rank = branch.rank,
        .padded = branch.rank,
        .x_stride = dy.stride,
        .y_stride = gradient.low_rank_gradient.stride,
        .scale = branch.scale};
    outer.parts[static_cast<std::size_t>(outer.count++)] = {
        .x = dy.data,
        .p = advance(call.low_rank.data, context.dtype, branch.column),
        .c = branch.b_gradient,
        .width = linear.out,
        .rank = branch.rank,
        .x_stride = dy.stride,
        .p_stride = call.low_rank.stride,
        .row = branch.rank,
        .column = 1,
        .scale = branch.scale};
  }
  low_rank_project(context.stream, project);
  low_rank_outer(context.stream, outer);
}

bool stands_behind(const StepContext& context, const Matrix& next, const Matrix& matrix,
                   std::int64_t cols) {
  return next.stride == matrix.stride && next.data == advance(matrix.data, context.dtype, cols);
}

/// Whether the weight after `index` can lie below those so far, `outs` rows, in the scratch, and
/// its matrix of `y` continues theirs: the two are one product then. Both have to be converted; 16
/// bytes are what a conversion needs its place aligned to.
bool joins(const StepContext& context, const LinearGroupCall& call, std::size_t index,
           std::int64_t outs) {
  const std::vector<Linear>& linears = call.group->linears;
  if (index + 1 >= linears.size()) return false;
  const auto room = static_cast<std::int64_t>(context.work->weight_bytes / bytes_of(context.dtype));
  const std::int64_t in = call.group->in;
  return is_converted(context, *linears[index].weight) &&
         is_converted(context, *linears[index + 1].weight) && outs * in % 8 == 0 &&
         (outs + linears[index + 1].out) * in <= room &&
         stands_behind(context, call.y[index + 1], call.y[index], linears[index].out);
}

/// dx (+)= sum_j dy_j W_j, and behind the last A's part where `with_a`. Gradients that stand side
/// by side are one product with their weights laid below each other, as many as the scratch holds;
/// A's rows are the last of them.
/// @returns whether A's part is in it
bool multiply_weights(const StepContext& context, const LinearGroupCall& call,
                      const InputGradient& gradient, bool with_a) {
  const LinearGroup& group = *call.group;
  const auto room = static_cast<std::int64_t>(context.work->weight_bytes / bytes_of(context.dtype));
  bool accumulate = gradient.accumulate;
  const std::size_t count = group.linears.size();
  for (std::size_t first = 0, next = 0; first < count; first = next) {
    std::int64_t outs = 0;
    ConstMatrix weight;
    AroundWeight around;
    bool more = false;
    do {
      const Linear& linear = group.linears[next];
      void* scratch = advance(context.work->weight, context.dtype, outs * group.in);
      outs += linear.out;
      more = joins(context, call, next, outs);
      if (with_a && next + 1 == count && is_converted(context, *linear.weight) &&
          (outs + group.lora.rank) * group.in <= room &&
          stands_behind(context, gradient.low_rank_gradient, call.y[next], linear.out)) {
        around.below = group.lora.a;
        around.below_count = group.lora.rank * group.in;
      }
      const ConstMatrix made =
          weight_in_compute_dtype(context, call.slab, *linear.weight, scratch, around);
      if (next == first) weight = made;
      ++next;
    } while (more);
    const bool folded = around.below != nullptr;
    context.gemm->multiply({.a = operand(context, call.y[first]),
                            .b = contiguous(context, weight.data, group.in),
                            .c = gradient.dx.data,
                            .c_dtype = context.dtype,
                            .c_stride = gradient.dx.stride,
                            .m = call.rows,
                            .n = group.in,
                            .k = folded ? outs + group.lora.rank : outs,
                            .beta = accumulate ? 1.0F : 0.0F});
    accumulate = true;
    if (folded) return true;
  }
  return false;
}

}  // namespace

void low_rank_forward(const StepContext& context, const LinearGroupCall& call) {
  const LinearGroup& group = *call.group;
  const LoraSite& lora = group.lora;
  if (call.rows == 0 || lora.rank == 0) return;
  if (lora.thin) {
    LowRankProject project{.count = 1, .rows = call.rows, .dtype = context.dtype};
    project.parts[0] = {.x = call.dropped.data,
                        .w = lora.a,
                        .y = call.low_rank.data,
                        .width = group.in,
                        .rank = lora.rank,
                        .padded = lora.rank,
                        .x_stride = call.dropped.stride,
                        .y_stride = call.low_rank.stride};
    low_rank_project(context.stream, project);
    return;
  }
  context.gemm->multiply({.a = operand(context, call.dropped),
                          .b = contiguous(context, lora.a, group.in, true),
                          .c = call.low_rank.data,
                          .c_dtype = context.dtype,
                          .c_stride = call.low_rank.stride,
                          .m = call.rows,
                          .n = lora.rank,
                          .k = group.in});
}

void linear_group_forward(const StepContext& context, const LinearGroupCall& call) {
  const LinearGroup& group = *call.group;
  const LoraSite& lora = group.lora;
  if (call.rows == 0) return;
  low_rank_forward(context, call);
  const bool behind_x = lora.rank > 0 && call.low_rank.stride == call.x.stride &&
                        call.low_rank.data == advance(call.x.data, context.dtype, group.in);
  const auto branch_of = [&](const Linear& linear) {
    return linear.branch < 0 ? nullptr : &lora.branches[static_cast<std::size_t>(linear.branch)];
  };
  // Nothing but x W^T: may be one product with the next.
  const auto plain = [&](const Linear& linear) {
    return linear.bias == nullptr && (!behind_x || linear.branch < 0);
  };
  for (std::size_t index = 0, next = 0; index < group.linears.size(); index = next) {
    const Linear& linear = group.linears[index];
    const LoraBranch* branch = branch_of(linear);
    AroundWeight around;
    if (behind_x && branch != nullptr) {
      around.padding = lora_padding(lora.rank);
      around.columns = {.b = branch->b,
                        .rank = branch->rank,
                        .first = branch->column,
                        .turned = branch->turned,
                        .scale = branch->scale};
    }
    const ConstMatrix weight =
        weight_in_compute_dtype(context, call.slab, *linear.weight, context.work->weight, around);
    const bool folded = weight.stride > linear.in;
    std::int64_t outs = linear.out;
    next = index + 1;
    if (plain(linear)) {
      for (; joins(context, call, next - 1, outs) && plain(group.linears[next]); ++next) {
        void* scratch = advance(context.work->weight, context.dtype, outs * group.in);
        (void)weight_in_compute_dtype(context, call.slab, *group.linears[next].weight, scratch);
        outs += group.linears[next].out;
      }
    }
    Gemm product = {.a = operand(context, call.x),
                    .b = contiguous(context, weight.data, weight.stride, true),
                    .c = call.y[index].data,
                    .c_dtype = context.dtype,
                    .c_stride = call.y[index].stride,
                    .m = call.rows,
                    .n = outs,
                    .k = folded ? linear.in + lora.rank : linear.in};
    if (call.addend.data != nullptr) {
      product.beta = 1.0F;
      product.addend = call.addend.data;
      product.addend_stride = call.addend.stride;
    }
    if (linear.bias != nullptr) {
      product.bias = call.slab + linear.bias->offset;
      product.bias_dtype = storage_dtype(*linear.bias);
    }
    context.gemm->multiply(product);
    if (folded) continue;
    for (std::size_t of = index; of < next; ++of) {
      branch = branch_of(group.linears[of]);
      if (branch == nullptr) continue;
      const Matrix low_rank = {advance(call.low_rank.data, context.dtype, branch->column),
                               call.low_rank.stride};
      context.gemm->multiply({.a = operand(context, low_rank),
                              .b = b_operand(context, *branch, true),
                              .c = call.y[of].data,
                              .c_dtype = context.dtype,
                              .c_stride = call.y[of].stride,
                              .m = call.rows,
                              .n = group.linears[of].out,
                              .k = branch->rank,
                              .alpha = branch->scale,
                              .beta = 1.0F});
    }
  }
}

void linear_group_backward(const StepContext& context, const LinearGroupCall& call,
                           const InputGradient& gradient) {
  const LinearGroup& group = *call.group;
  const LoraSite& lora = group.lora;
  if (call.rows == 0) return;
  if (lora.thin) {
    thin_backward(context, call, gradient);
  } else if (lora.rank > 0) {
    low_rank_backward(context, call, gradient);
  }
  if (gradient.dx.data == nullptr) return;
  const bool masked = gradient.dropped_gradient != nullptr;
  const bool folded = multiply_weights(context, call, gradient, lora.rank > 0 && !masked);
  if (lora.rank == 0 || folded) return;
  const Matrix target = masked ? Matrix{gradient.dropped_gradient, group.in} : gradient.dx;
  context.gemm->multiply({.a = operand(context, gradient.low_rank_gradient),
                          .b = contiguous(context, lora.a, group.in),
                          .c = target.data,
                          .c_dtype = context.dtype,
                          .c_stride = target.stride,
                          .m = call.rows,
                          .n = group.in,
                          .k = lora.rank,
                          .beta = masked ? 0.0F : 1.0F});
  if (!masked || gradient.leave_mask) return;
  Dropout mask = gradient.mask;
  mask.x = gradient.dropped_gradient;
  mask.y = gradient.dx.data;
  mask.x_stride = group.in;
  mask.y_stride = gradient.dx.stride;
  mask.accumulate = true;
  dropout_backward(context.stream, mask);
}

GateFunction gate_function(const MlpShape& shape) {
  return shape.activation == Activation::silu ? GateFunction::silu : GateFunction::gelu_tanh;
}

Dropout site_mask(const StepContext& context, const SweepTokens& sweep, std::int64_t layer,
                  Site site, std::int64_t cols) {
  Dropout mask;
  mask.rows = sweep.rows;
  mask.cols = cols;
  mask.dtype = context.dtype;
  mask.p = context.dropout;
  mask.seed = context.plan->seed;
  mask.step = static_cast<std::uint32_t>(context.step);
  mask.layer = static_cast<std::uint32_t>(layer);
  mask.site = static_cast<std::uint32_t>(site);
  mask.micro_batch = sweep.micro_batch;
  mask.row_index = sweep.row_index;
  return mask;
}

}  // namespace poros
