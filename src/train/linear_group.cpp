// SPDX-License-Identifier: Apache-2.0
#include "train/linear_group.hpp"

#include <algorithm>

#include "kernels/elementwise.hpp"

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

}  // namespace

void low_rank_forward(const StepContext& context, const LinearGroupCall& call) {
  const LinearGroup& group = *call.group;
  const LoraSite& lora = group.lora;
  if (call.rows == 0 || lora.rank == 0) return;
  context.gemm->multiply({.a = operand(context, call.dropped),
                          .b = contiguous(context, lora.a, group.in, true),
                          .c = call.low_rank,
                          .c_dtype = context.dtype,
                          .c_stride = lora.rank,
                          .m = call.rows,
                          .n = lora.rank,
                          .k = group.in});
}

void linear_group_forward(const StepContext& context, const LinearGroupCall& call) {
  const LinearGroup& group = *call.group;
  const LoraSite& lora = group.lora;
  if (call.rows == 0) return;
  low_rank_forward(context, call);
  for (std::size_t index = 0; index < group.linears.size(); ++index) {
    const Linear& linear = group.linears[index];
    const Matrix& y = call.y[index];
    const void* weight =
        weight_in_compute_dtype(context, call.slab, *linear.weight, context.work->weight);
    context.gemm->multiply({.a = operand(context, call.x),
                            .b = contiguous(context, weight, linear.in, true),
                            .c = y.data,
                            .c_dtype = context.dtype,
                            .c_stride = y.stride,
                            .m = call.rows,
                            .n = linear.out,
                            .k = linear.in});
    if (linear.bias != nullptr) {
      add_bias(context.stream, {.x = y.data,
                                .bias = call.slab + linear.bias->offset,
                                .rows = call.rows,
                                .cols = linear.out,
                                .x_stride = y.stride,
                                .dtype = context.dtype,
                                .bias_dtype = storage_dtype(*linear.bias)});
    }
    if (linear.branch < 0) continue;
    const LoraBranch& branch = lora.branches[static_cast<std::size_t>(linear.branch)];
    const Matrix low_rank = {advance(call.low_rank, context.dtype, branch.column), lora.rank};
    context.gemm->multiply({.a = operand(context, low_rank),
                            .b = contiguous(context, branch.b, branch.rank, true),
                            .c = y.data,
                            .c_dtype = context.dtype,
                            .c_stride = y.stride,
                            .m = call.rows,
                            .n = linear.out,
                            .k = branch.rank,
                            .alpha = branch.scale,
                            .beta = 1.0F});
  }
}

void linear_group_backward(const StepContext& context, const LinearGroupCall& call,
                           const InputGradient& gradient) {
  const LinearGroup& group = *call.group;
  const LoraSite& lora = group.lora;
  if (call.rows == 0) return;
  const bool wants_dx = gradient.dx.data != nullptr;
  bool accumulate = gradient.accumulate;
  for (std::size_t index = 0; index < group.linears.size(); ++index) {
    const Linear& linear = group.linears[index];
    const Matrix& dy = call.y[index];
    if (wants_dx) {
      const void* weight =
          weight_in_compute_dtype(context, call.slab, *linear.weight, context.work->weight);
      context.gemm->multiply({.a = operand(context, dy),
                              .b = contiguous(context, weight, linear.in),
                              .c = gradient.dx.data,
                              .c_dtype = context.dtype,
                              .c_stride = gradient.dx.stride,
                              .m = call.rows,
                              .n = linear.in,
                              .k = linear.out,
                              .beta = accumulate ? 1.0F : 0.0F});
      accumulate = true;
    }
    if (linear.branch < 0) continue;
    const LoraBranch& branch = lora.branches[static_cast<std::size_t>(linear.branch)];
    void* branch_gradient = advance(gradient.low_rank_gradient, context.dtype, branch.column);
    context.gemm->multiply({.a = operand(context, dy),
                            .b = contiguous(context, branch.b, branch.rank),
                            .c = branch_gradient,
                            .c_dtype = context.dtype,
                            .c_stride = lora.rank,
                            .m = call.rows,
                            .n = branch.rank,
                            .k = linear.out,
                            .alpha = branch.scale});
    const Matrix low_rank = {advance(call.low_rank, context.dtype, branch.column), lora.rank};
    accumulate_outer(context, dy, linear.out, low_rank, branch.rank, call.rows, branch.scale,
                     branch.b_gradient);
  }
  if (lora.rank == 0) return;
  const Matrix low_rank_gradient = {gradient.low_rank_gradient, lora.rank};
  accumulate_outer(context, low_rank_gradient, lora.rank, call.dropped, group.in, call.rows, 1.0F,
                   lora.a_gradient);
  if (!wants_dx) return;
  const bool masked = gradient.dropped_gradient != nullptr;
  const Matrix target = masked ? Matrix{gradient.dropped_gradient, group.in} : gradient.dx;
  context.gemm->multiply({.a = operand(context, low_rank_gradient),
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
