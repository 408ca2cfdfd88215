// SPDX-License-Identifier: Apache-2.0
// LibTorch's FlashAttention-2, called below autograd on views of our own buffers. Its temporaries
// come from the caching allocator; their sizes are the same in every step, so that after the first
// one no memory is taken from the device.
#include <optional>

#include <ATen/core/Tensor.h>
#include <ATen/ops/_flash_attention_backward_cuda_dispatch.h>
#include <ATen/ops/_flash_attention_forward_cuda_dispatch.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include "kernels/elementwise.hpp"
#include "train/cuda_parts.hpp"

namespace poros {
namespace {

at::Tensor view(const void* data, at::IntArrayRef sizes, at::IntArrayRef strides,
                c10::ScalarType type) {
  return at::from_blob(const_cast<void*>(data), sizes, strides,
                       at::TensorOptions().dtype(type).device(c10::DeviceType::CUDA, 0));
}

/// q, k, v of a call, without copies.
struct Operands {
  explicit Operands(const AttentionCall& call)
      : rows(call.sweep->rows),
        heads(call.shape->heads),
        kv_heads(call.shape->kv_heads),
        dim(call.shape->head_dim),
        stride((heads + 2 * kv_heads) * dim) {
    q = at_column(call.qkv, 0, heads);
    k = at_column(call.qkv, heads, kv_heads);
    v = at_column(call.qkv, heads + kv_heads, kv_heads);
    offsets = view(call.sweep->document_offsets, {call.sweep->document_slots + 1}, {1},
                   c10::ScalarType::Int);
    if (call.shape->window > 0) {
      window_left = call.shape->window - 1;
      window_right = 0;
    }
  }

  [[nodiscard]] at::Tensor at_column(const void* data, std::int64_t head,
                                     std::int64_t count) const {
    return view(advance(data, DType::bf16, head * dim), {rows, count, dim}, {stride, dim, 1},
                c10::ScalarType::BFloat16);
  }
  [[nodiscard]] at::Tensor of_output(const void* data, std::int64_t row_stride) const {
    return view(data, {rows, heads, dim}, {row_stride, dim, 1}, c10::ScalarType::BFloat16);
  }

  std::int64_t rows, heads, kv_heads, dim, stride;
  at::Tensor q, k, v, offsets;
  std::optional<std::int64_t> window_left, window_right;
};

void clear_padding(const StepContext& context, const SweepTokens& sweep, void* data,
                   std::int64_t stride) {
  fill_bytes(context.stream, advance(data, DType::bf16, sweep.tokens * stride), 0,
             static_cast<std::uint64_t>((sweep.rows - sweep.tokens) * stride) * 2);
}

class Flash final : public FlashAttention {
 public:
  void forward(const StepContext& context, const AttentionCall& call) override {
    const c10::NoGradGuard no_grad;
    const Operands operands(call);
    const std::int64_t longest = context.plan->seq_len;
    auto [out, logsumexp, seed, offset, mask] = at::cuda::_flash_attention_forward(
        operands.q, operands.k, operands.v, operands.offsets, operands.offsets, longest, longest,
        0.0, true, false, static_cast<double>(call.shape->scale), operands.window_left,
        operands.window_right);
    logsumexp_ = std::move(logsumexp);
    seed_ = std::move(seed);
    offset_ = std::move(offset);
    copy_rows(context.stream, {.x = out.data_ptr(),
                               .y = call.output,
                               .rows = call.sweep->tokens,
                               .cols = operands.heads * operands.dim,
                               .y_stride = call.output_stride,
                               .x_dtype = DType::bf16,
                               .y_dtype = DType::bf16});
    clear_padding(context, *call.sweep, call.output, call.output_stride);
  }

  void backward(const StepContext& context, const AttentionCall& call, const void* output_gradient,
                void* qkv_gradient, const Rotary* rotary) override {
    const c10::NoGradGuard no_grad;
    const Operands operands(call);
    const std::int64_t longest = context.plan->seq_len;
    const auto [dq, dk, dv] = at::cuda::_flash_attention_backward(
        operands.of_output(output_gradient, operands.heads * operands.dim), operands.q, operands.k,
        operands.v, operands.of_output(call.output, call.output_stride), logsumexp_,
        operands.offsets, operands.offsets, longest, longest, 0.0, true, seed_, offset_,
        static_cast<double>(call.shape->scale), operands.window_left, operands.window_right);
    const auto put = [&](const at::Tensor& gradient, std::int64_t head, std::int64_t count) {
      copy_rows(context.stream, {.x = gradient.data_ptr(),
                                 .y = advance(qkv_gradient, DType::bf16, head * operands.dim),
                                 .rows = call.sweep->tokens,
                                 .cols = count * operands.dim,
                                 .x_stride = gradient.stride(0),
                                 .y_stride = call.gradient_stride,
                                 .x_dtype = DType::bf16,
                                 .y_dtype = DType::bf16});
    };
    const auto turn = [&](const at::Tensor& gradient, std::int64_t head, std::int64_t count) {
      if (rotary == nullptr) return put(gradient, head, count);
      Rotary op = *rotary;
      op.x = advance(qkv_gradient, DType::bf16, head * operands.dim);
      op.source = gradient.data_ptr();
      op.source_stride = gradient.stride(0);
      op.rows = call.sweep->tokens;
      op.heads = count;
      op.row_stride = call.gradient_stride;
      rotary_backward(context.stream, op);
    };
    turn(dq, 0, operands.heads);
    turn(dk, operands.heads, operands.kv_heads);
    put(dv, operands.heads + operands.kv_heads, operands.kv_heads);
    clear_padding(context, *call.sweep, qkv_gradient, call.gradient_stride);
  }

 private:
  at::Tensor logsumexp_, seed_, offset_;
};

}  // namespace

std::unique_ptr<FlashAttention> make_flash_attention() {
  return std::make_unique<Flash>();
}

}  // namespace poros
