// SPDX-License-Identifier: Apache-2.0
#include "all_ops_runner.hpp"
#include "kernels/attention_softmax.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/gated_activation.hpp"
#include "kernels/rms_norm.hpp"
#include "kernels/rotary.hpp"

namespace poros::test {

void norms(Runner& run, DType dtype, std::int64_t cols, NormWeight kind) {
  const std::string name =
      "rms_norm " + std::to_string(cols) + " " + (kind == NormWeight::plain ? "plain" : "plus_one");
  const std::int64_t count = kRows * cols;
  void* x = run.put(random_operand(dtype, count, 1));
  void* residual = run.put(random_operand(dtype, count, 2));
  void* weight = run.put(random_operand(DType::bf16, cols, 3));
  void* sum = run.room(dtype, count);
  void* y = run.room(dtype, count);
  float* rstd = run.floats(kRows);
  rms_norm_forward(run.stream, {.x = x,
                                .residual = residual,
                                .residual_out = sum,
                                .weight = weight,
                                .y = y,
                                .rstd = rstd,
                                .rows = kRows,
                                .cols = cols,
                                .dtype = dtype,
                                .weight_dtype = DType::bf16,
                                .weight_kind = kind});
  run.keep(name + " sum", sum, dtype, count, Agreement::exact);
  run.keep(name + " y", y, dtype, count);
  run.keep(name + " rstd", rstd, DType::f32, kRows);
  rms_norm_backward(run.stream, {.dy = x,
                                 .r = sum,
                                 .weight = weight,
                                 .rstd = rstd,
                                 .residual_gradient = residual,
                                 .dx = x,
                                 .rows = kRows,
                                 .cols = cols,
                                 .dtype = dtype,
                                 .weight_dtype = DType::bf16,
                                 .weight_kind = kind});
  run.keep(name + " dx", x, dtype, count, Agreement::close, 2.0);
}

void heads(Runner& run, DType dtype) {
  constexpr std::int64_t kHeads = 6, kDim = 48, kRotary = 32, kStride = 400;
  void* x = run.put(random_operand(dtype, kRows * kStride, 4));
  void* weight = run.put(random_operand(DType::f32, kDim, 5));
  void* normed = run.room(dtype, kRows * kHeads * kDim);
  float* rstd = run.floats(kRows * kHeads);
  rms_norm_forward(run.stream, {.x = x,
                                .weight = weight,
                                .y = normed,
                                .rstd = rstd,
                                .rows = kRows,
                                .cols = kDim,
                                .groups = kHeads,
                                .x_stride = kStride,
                                .dtype = dtype});
  run.keep("head norm", normed, dtype, kRows * kHeads * kDim);
  std::vector<float> inv_freq;
  for (int i = 0; i < kRotary / 2; ++i) inv_freq.push_back(std::pow(0.6F, static_cast<float>(i)));
  std::vector<float> cos(100 * kRotary / 2), sin(100 * kRotary / 2);
  build_rotary_table(inv_freq, 1.0F, 100, cos.data(), sin.data());
  std::vector<std::int32_t> positions;
  for (int row = 0; row < kRows; ++row) positions.push_back(row * 7 % 100);
  const Rotary rotary{.x = x,
                      .positions = run.put(positions),
                      .cos = run.put(cos),
                      .sin = run.put(sin),
                      .rows = kRows,
                      .heads = kHeads,
                      .head_dim = kDim,
                      .rotary_dim = kRotary,
                      .row_stride = kStride,
                      .table_positions = 100,
                      .dtype = dtype};
  rotary_forward(run.stream, rotary);
  run.keep("rotary forward", x, dtype, kRows * kStride);
  rotary_backward(run.stream, rotary);
  run.keep("rotary there and back", x, dtype, kRows * kStride, Agreement::close, 2.0);
  Rotary from_there = rotary;  // heads of kRotary dimensions, all of which turn
  from_there.x = run.room(dtype, kRows * kStride);
  from_there.source = run.put(random_operand(dtype, kRows * kHeads * kRotary, 19));
  from_there.head_dim = kRotary;
  rotary_backward(run.stream, from_there);
  run.keep("rotary from a source", from_there.x, dtype, kRows * kStride);
  void* grouped = run.room(dtype, kRows * 2 * kDim);
  group_sum(run.stream, {.x = normed,
                         .y = grouped,
                         .rows = kRows,
                         .kv_heads = 2,
                         .group = 3,
                         .head_dim = kDim,
                         .x_dtype = dtype,
                         .y_dtype = dtype});
  run.keep("group_sum", grouped, dtype, kRows * 2 * kDim);
}

void gated(Runner& run, DType dtype, GateFunction function, std::int64_t cols) {
  const std::string name =
      std::string(function == GateFunction::silu ? "silu " : "gelu_tanh ") + std::to_string(cols);
  void* fused = run.put(random_operand(dtype, kRows * 2 * cols, 6, 3.0));
  auto* gate = static_cast<std::byte*>(fused);
  auto* up = gate + static_cast<std::size_t>(cols) * bytes_of(dtype);
  void* dy = run.put(random_operand(dtype, kRows * cols, 7));
  void* y = run.room(dtype, kRows * cols);
  gated_activation_forward(run.stream, {.gate = gate,
                                        .up = up,
                                        .y = y,
                                        .rows = kRows,
                                        .cols = cols,
                                        .gate_stride = 2 * cols,
                                        .up_stride = 2 * cols,
                                        .dtype = dtype,
                                        .function = function});
  run.keep(name + " y", y, dtype, kRows * cols, Agreement::close, 2.0);
  gated_activation_backward(run.stream, {.dy = dy,
                                         .gate = gate,
                                         .up = up,
                                         .dgate = gate,
                                         .dup = up,
                                         .y = y,
                                         .rows = kRows,
                                         .cols = cols,
                                         .gate_stride = 2 * cols,
                                         .up_stride = 2 * cols,
                                         .dtype = dtype,
                                         .function = function});
  run.keep(name + " dgate dup", fused, dtype, kRows * 2 * cols, Agreement::close, 4.0);
  run.keep(name + " y again", y, dtype, kRows * cols, Agreement::close, 2.0);
}

void attention(Runner& run, float softcap, std::int64_t window, bool packed, std::int64_t keys) {
  const std::string name = "softmax cap " + std::to_string(int(softcap)) + " window " +
                           std::to_string(window) + (packed ? " packed" : "") + " keys " +
                           std::to_string(keys);
  constexpr std::int64_t kBatch = 3, kQueries = 37;
  const std::int64_t first = keys - kQueries;
  std::vector<std::int32_t> documents;
  for (int i = 0; i < keys; ++i) documents.push_back(i < 3 ? 0 : i > keys - 5 ? -1 : 1 + i / 150);
  const std::int64_t count = kBatch * kQueries * keys;
  auto* scores = static_cast<float*>(run.put(random_operand(DType::f32, count, 8, 4.0)));
  auto* gradient = static_cast<float*>(run.put(random_operand(DType::f32, count, 9)));
  void* rounded = run.room(DType::bf16, count);
  float* logsumexp = run.floats(kBatch * kQueries);
  attention_softmax_forward(run.stream,
                            {.scores = scores,
                             .rounded = rounded,
                             .logsumexp = logsumexp,
                             .batch = kBatch,
                             .queries = kQueries,
                             .keys = keys,
                             .mask = {.first_query = first,
                                      .window = window,
                                      .documents = packed ? run.put(documents) : nullptr},
                             .scale = 0.4F,
                             .softcap = softcap});
  run.keep(name + " p", scores, DType::f32, count);
  run.keep(name + " p rounded", rounded, DType::bf16, count);
  run.keep(name + " logsumexp", logsumexp, DType::f32, kBatch * kQueries);
  attention_softmax_backward(run.stream, {.probabilities = scores,
                                          .gradient = gradient,
                                          .rounded = rounded,
                                          .logsumexp = logsumexp,
                                          .batch = kBatch,
                                          .queries = kQueries,
                                          .keys = keys,
                                          .scale = 0.4F,
                                          .softcap = softcap});
  run.keep(name + " ds", gradient, DType::f32, count, Agreement::close, 2.0);
  run.keep(name + " ds rounded", rounded, DType::bf16, count, Agreement::close, 2.0);
}

}  // namespace poros::test
