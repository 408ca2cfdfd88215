// SPDX-License-Identifier: Apache-2.0
#include "train/attention_blocked.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "kernels/attention_softmax.hpp"
#include "kernels/elementwise.hpp"
#include "plan/step_buffers.hpp"

namespace poros {
namespace {

/// A run of query rows and the keys that at least one of them can see.
struct Tile {
  std::int64_t first_query = 0, queries = 0;
  std::int64_t first_key = 0, keys = 0;
};

/// The tiles of a sweep. Key ranges begin at multiples of 16 rows, so that alignment does not
/// depend on where documents begin.
std::vector<Tile> tiles_of(const StepContext& context, const AttentionCall& call) {
  std::vector<Tile> tiles;
  const SweepTokens& sweep = *call.sweep;
  const std::int64_t window = call.shape->window;
  const std::int64_t capacity = attention_key_capacity(*context.plan);
  for (std::int64_t begin = 0; begin < sweep.tokens; begin += context.plan->query_block) {
    Tile tile;
    tile.first_query = begin;
    tile.queries = std::min(context.plan->query_block, sweep.tokens - begin);
    std::int64_t first = sweep.host_document_begin[static_cast<std::size_t>(begin)];
    if (window > 0) first = std::max(first, begin - window + 1);
    tile.first_key = first / 16 * 16;
    tile.keys = begin + tile.queries - tile.first_key;
    if (tile.keys > capacity) {
      fail(Fault::run, "an attention tile sees {} keys, the plan foresaw {}", tile.keys, capacity);
    }
    tiles.push_back(tile);
  }
  return tiles;
}

/// Sizes and strides of a call, and its products.
class Tiled {
 public:
  Tiled(const StepContext& context, const AttentionCall& call)
      : context_(context),
        call_(call),
        dim_(call.shape->head_dim),
        heads_(call.shape->heads),
        kv_heads_(call.shape->kv_heads),
        group_(heads_ / kv_heads_),
        stride_((heads_ + 2 * kv_heads_) * dim_) {}

  [[nodiscard]] std::int64_t dim() const { return dim_; }
  [[nodiscard]] std::int64_t kv_heads() const { return kv_heads_; }
  [[nodiscard]] std::int64_t group() const { return group_; }
  [[nodiscard]] std::int64_t stride() const { return stride_; }
  [[nodiscard]] std::int64_t query_columns() const { return heads_ * dim_; }

  // Columns of the first query head of kv head `kv`, of its key and of its value.
  [[nodiscard]] std::int64_t query_column(std::int64_t kv) const { return kv * group_ * dim_; }
  [[nodiscard]] std::int64_t key_column(std::int64_t kv) const { return (heads_ + kv) * dim_; }
  [[nodiscard]] std::int64_t value_column(std::int64_t kv) const {
    return (heads_ + kv_heads_ + kv) * dim_;
  }

  /// Operand at (row, column) of an activation matrix.
  [[nodiscard]] GemmOperand at(const void* data, std::int64_t row, std::int64_t column,
                               std::int64_t stride, bool transposed, std::int64_t batch) const {
    return {.data = advance(data, context_.dtype, row * stride + column),
            .dtype = context_.dtype,
            .stride = stride,
            .transposed = transposed,
            .batch_stride = batch};
  }

  /// Probabilities of the group's query heads over the tile's keys into work->scores, and
  /// logsumexp.
  void probabilities(const Tile& tile, std::int64_t kv) const {
    Workspace& work = *context_.work;
    context_.gemm->multiply(
        {.a = at(call_.qkv, tile.first_query, query_column(kv), stride_, false, dim_),
         .b = at(call_.qkv, tile.first_key, key_column(kv), stride_, true, 0),
         .c = work.scores,
         .c_stride = tile.keys,
         .c_batch_stride = tile.queries * tile.keys,
         .m = tile.queries,
         .n = tile.keys,
         .k = dim_,
         .batch = group_});
    attention_softmax_forward(context_.stream, {.scores = work.scores,
                                                .rounded = work.scores_rounded,
                                                .logsumexp = work.logsumexp,
                                                .batch = group_,
                                                .queries = tile.queries,
                                                .keys = tile.keys,
                                                .mask = {.first_query = tile.first_query,
                                                         .first_key = tile.first_key,
                                                         .window = call_.shape->window,
                                                         .documents = call_.sweep->documents},
                                                .scale = call_.shape->scale,
                                                .softcap = call_.shape->softcap,
                                                .rounded_dtype = context_.dtype});
  }

  /// The tile's probabilities or score gradients as an operand, [queries, keys] a head.
  [[nodiscard]] GemmOperand tile_operand(const Tile& tile, float* values, bool transposed) const {
    const bool rounded = context_.work->scores_rounded != nullptr;
    return {.data = rounded ? context_.work->scores_rounded : values,
            .dtype = rounded ? context_.dtype : DType::f32,
            .stride = tile.keys,
            .transposed = transposed,
            .batch_stride = tile.queries * tile.keys};
  }

 private:
  const StepContext& context_;
  const AttentionCall& call_;
  std::int64_t dim_, heads_, kv_heads_, group_, stride_;
};

/// Rows from `tokens` on are padding: their gradients and outputs are 0.
void clear_padding(const StepContext& context, const SweepTokens& sweep, void* data,
                   std::int64_t stride) {
  const std::int64_t rows = sweep.rows - sweep.tokens;
  fill_bytes(context.stream, advance(data, context.dtype, sweep.tokens * stride), 0,
             static_cast<std::uint64_t>(rows * stride) * bytes_of(context.dtype));
}

}  // namespace

void attention_blocked_forward(const StepContext& context, const AttentionCall& call) {
  const Tiled tiled(context, call);
  for (const Tile& tile : tiles_of(context, call)) {
    for (std::int64_t kv = 0; kv < tiled.kv_heads(); ++kv) {
      tiled.probabilities(tile, kv);
      context.gemm->multiply(
          {.a = tiled.tile_operand(tile, context.work->scores, false),
           .b =
               tiled.at(call.qkv, tile.first_key, tiled.value_column(kv), tiled.stride(), false, 0),
           .c = advance(call.output, context.dtype,
                        tile.first_query * call.output_stride + tiled.query_column(kv)),
           .c_dtype = context.dtype,
           .c_stride = call.output_stride,
           .c_batch_stride = tiled.dim(),
           .m = tile.queries,
           .n = tiled.dim(),
           .k = tile.keys,
           .batch = tiled.group()});
    }
  }
  clear_padding(context, *call.sweep, call.output, call.output_stride);
}

void attention_blocked_backward(const StepContext& context, const AttentionCall& call,
                                const void* output_gradient, void* qkv_gradient) {
  const Tiled tiled(context, call);
  const SweepTokens& sweep = *call.sweep;
  Workspace& work = *context.work;
  const std::int64_t columns = tiled.query_columns(), dim = tiled.dim();
  const std::int64_t kv_columns = 2 * tiled.kv_heads() * dim;
  // Gradients of keys and values add up over tiles and heads in fp32: in place where the gradient
  // is fp32 itself.
  const bool separate = work.key_value_gradient != nullptr;
  float* kv_gradient = separate ? work.key_value_gradient : static_cast<float*>(qkv_gradient);
  const std::int64_t kv_stride = separate ? kv_columns : call.gradient_stride;
  const std::int64_t kv_shift = separate ? -columns : 0;
  fill_bytes(context.stream, separate ? static_cast<void*>(kv_gradient) : qkv_gradient, 0,
             static_cast<std::uint64_t>(sweep.rows * kv_stride) * sizeof(float));
  const auto kv_at = [&](std::int64_t row, std::int64_t column) {
    return kv_gradient + row * kv_stride + column + kv_shift;
  };

  for (const Tile& tile : tiles_of(context, call)) {
    for (std::int64_t kv = 0; kv < tiled.kv_heads(); ++kv) {
      tiled.probabilities(tile, kv);
      const GemmOperand dout =
          tiled.at(output_gradient, tile.first_query, tiled.query_column(kv), columns, false, dim);
      const GemmOperand value =
          tiled.at(call.qkv, tile.first_key, tiled.value_column(kv), tiled.stride(), true, 0);
      Gemm dv = {.a = tiled.tile_operand(tile, work.scores, true),
                 .b = dout,
                 .c = kv_at(tile.first_key, tiled.value_column(kv)),
                 .c_stride = kv_stride,
                 .m = tile.keys,
                 .n = dim,
                 .k = tile.queries,
                 .batch = tiled.group(),
                 .beta = 1.0F};
      context.gemm->multiply(dv);
      context.gemm->multiply({.a = dout,
                              .b = value,
                              .c = work.score_gradients,
                              .c_stride = tile.keys,
                              .c_batch_stride = tile.queries * tile.keys,
                              .m = tile.queries,
                              .n = tile.keys,
                              .k = dim,
                              .batch = tiled.group()});
      attention_softmax_backward(context.stream, {.probabilities = work.scores,
                                                  .gradient = work.score_gradients,
                                                  .rounded = work.scores_rounded,
                                                  .logsumexp = work.logsumexp,
                                                  .batch = tiled.group(),
                                                  .queries = tile.queries,
                                                  .keys = tile.keys,
                                                  .scale = call.shape->scale,
                                                  .softcap = call.shape->softcap,
                                                  .rounded_dtype = context.dtype});
      context.gemm->multiply(
          {.a = tiled.tile_operand(tile, work.score_gradients, false),
           .b = tiled.at(call.qkv, tile.first_key, tiled.key_column(kv), tiled.stride(), false, 0),
           .c = advance(qkv_gradient, context.dtype,
                        tile.first_query * call.gradient_stride + tiled.query_column(kv)),
           .c_dtype = context.dtype,
           .c_stride = call.gradient_stride,
           .c_batch_stride = dim,
           .m = tile.queries,
           .n = dim,
           .k = tile.keys,
           .batch = tiled.group()});
      context.gemm->multiply({.a = tiled.tile_operand(tile, work.score_gradients, true),
                              .b = tiled.at(call.qkv, tile.first_query, tiled.query_column(kv),
                                            tiled.stride(), false, dim),
                              .c = kv_at(tile.first_key, tiled.key_column(kv)),
                              .c_stride = kv_stride,
                              .m = tile.keys,
                              .n = dim,
                              .k = tile.queries,
                              .batch = tiled.group(),
                              .beta = 1.0F});
    }
  }
  if (separate) {
    clear_padding(context, sweep, qkv_gradient, call.gradient_stride);
    copy_rows(context.stream, {.x = kv_gradient,
                               .y = advance(qkv_gradient, context.dtype, columns),
                               .rows = sweep.rows,
                               .cols = kv_columns,
                               .x_stride = kv_columns,
                               .y_stride = call.gradient_stride,
                               .x_dtype = DType::f32,
                               .y_dtype = context.dtype});
  }
}

}  // namespace poros
