// SPDX-License-Identifier: Apache-2.0
#include "all_ops.hpp"

#include <cstdlib>

#include "kernels/adamw.hpp"
#include "kernels/attention_softmax.hpp"
#include "kernels/cross_entropy.hpp"
#include "kernels/dequantise.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/gated_activation.hpp"
#include "kernels/moe.hpp"
#include "kernels/philox.hpp"
#include "kernels/rms_norm.hpp"
#include "kernels/rotary.hpp"

namespace poros::test {

void* HostMemory::allocate(std::size_t bytes) {
  void* p = std::aligned_alloc(256, (bytes / 256 + 1) * 256);
  held_.emplace_back(p);
  return p;
}
void HostMemory::upload(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}
void HostMemory::download(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

namespace {

/// The running state of run_all_ops: where it runs and what came out.
class Runner {
 public:
  Runner(const Stream& where, Memory& memory) : stream(where), memory_(memory) {}

  const Stream& stream;

  void* put(const Operand& operand) { return put_bytes(operand.data(), operand.bytes().size()); }
  template <typename T>
  T* put(const std::vector<T>& values) {
    return static_cast<T*>(put_bytes(values.data(), values.size() * sizeof(T)));
  }
  void* room(DType dtype, std::int64_t count) {
    const Operand zeros(dtype, static_cast<std::size_t>(count));
    return put(zeros);
  }
  float* floats(std::int64_t count) { return static_cast<float*>(room(DType::f32, count)); }

  void keep(const std::string& name, const void* data, DType dtype, std::int64_t count,
            Agreement agreement = Agreement::close, double loosen = 1.0) {
    Operand values(dtype, static_cast<std::size_t>(count));
    memory_.download(values.data(), data, values.bytes().size());
    outputs.push_back({name + " " + name_of(dtype), std::move(values), agreement, loosen});
  }
  void keep_integers(const std::string& name, const std::int32_t* data, std::int64_t count) {
    std::vector<std::int32_t> host(static_cast<std::size_t>(count));
    memory_.download(host.data(), data, host.size() * sizeof(std::int32_t));
    outputs.push_back({name, Operand(DType::f32, std::vector<double>(host.begin(), host.end())),
                       Agreement::exact, 1.0});
  }
  Memory& memory() { return memory_; }

  std::vector<Output> outputs;

 private:
  void* put_bytes(const void* data, std::size_t bytes) {
    void* p = memory_.allocate(bytes);
    memory_.upload(p, data, bytes);
    return p;
  }
  Memory& memory_;
};

constexpr std::int64_t kRows = 70, kCols = 1003;  // odd on purpose: rows end off every vector

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

void attention(Runner& run, float softcap, std::int64_t window, bool packed) {
  const std::string name = "softmax cap " + std::to_string(int(softcap)) + " window " +
                           std::to_string(window) + (packed ? " packed" : "");
  constexpr std::int64_t kBatch = 3, kQueries = 37, kKeys = 600, kFirst = kKeys - kQueries;
  std::vector<std::int32_t> documents;
  for (int i = 0; i < kKeys; ++i) documents.push_back(i < 3 ? 0 : i > 595 ? -1 : 1 + i / 150);
  const std::int64_t count = kBatch * kQueries * kKeys;
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
                             .keys = kKeys,
                             .mask = {.first_query = kFirst,
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
                                          .keys = kKeys,
                                          .scale = 0.4F,
                                          .softcap = softcap});
  run.keep(name + " ds", gradient, DType::f32, count, Agreement::close, 2.0);
  run.keep(name + " ds rounded", rounded, DType::bf16, count, Agreement::close, 2.0);
}

void loss(Runner& run, DType dtype, float softcap) {
  const std::string name = "cross_entropy cap " + std::to_string(int(softcap));
  constexpr std::int64_t kHidden = 40;
  std::vector<std::int32_t> target_values;
  for (int row = 0; row < kRows; ++row) {
    target_values.push_back(row % 5 == 2 ? -100 : row * 31 % (2 * kCols));
  }
  const std::int32_t* targets = run.put(target_values);
  const CrossEntropyState state{run.floats(kRows), run.floats(kRows), run.floats(kRows)};
  void* logits = run.put(random_operand(dtype, kRows * kCols, 10, 3.0));
  void* exponentials = run.room(dtype, kRows * kCols);
  float* rescale = run.floats(kRows);
  cross_entropy_init(run.stream, state, kRows);
  for (int chunk = 0; chunk < 2; ++chunk) {
    cross_entropy_accumulate(run.stream, {.logits = logits,
                                          .targets = targets,
                                          .state = state,
                                          .exponentials = exponentials,
                                          .rescale = rescale,
                                          .rows = kRows,
                                          .classes = kCols,
                                          .first_class = chunk * kCols,
                                          .dtype = dtype,
                                          .softcap = softcap});
  }
  run.keep(name + " exponentials", exponentials, dtype, kRows * kCols, Agreement::close, 2.0);
  run.keep(name + " rescale", rescale, DType::f32, kRows);
  float* row_loss = run.floats(kRows);
  double* total = run.put(std::vector<double>{1.5});
  cross_entropy_loss(run.stream, {.targets = targets,
                                  .state = state,
                                  .row_loss = row_loss,
                                  .total = total,
                                  .add_to_total = true,
                                  .rows = kRows});
  run.keep(name + " row_loss", row_loss, DType::f32, kRows, Agreement::close, 2.0);
  double host_total = 0;
  run.memory().download(&host_total, total, sizeof host_total);
  run.outputs.push_back(
      {name + " total", Operand(DType::f32, std::vector{host_total}), Agreement::close, 1.0});
  cross_entropy_gradient(run.stream, {.logits = logits,
                                      .targets = targets,
                                      .state = state,
                                      .rows = kRows,
                                      .classes = kCols,
                                      .dtype = dtype,
                                      .softcap = softcap,
                                      .inv_supervised_tokens = 0.25F});
  run.keep(name + " dlogits", logits, dtype, kRows * kCols, Agreement::close, 2.0);
  auto* accumulated = static_cast<float*>(run.put(random_operand(DType::f32, kRows * kHidden, 11)));
  void* dx = run.room(dtype, kRows * kHidden);
  cross_entropy_finish(run.stream,
                       {.accumulated = accumulated,
                        .target_rows = run.put(random_operand(DType::f16, kRows * kHidden, 12)),
                        .targets = targets,
                        .state = state,
                        .dx = dx,
                        .rows = kRows,
                        .hidden = kHidden,
                        .dtype = dtype,
                        .target_dtype = DType::f16,
                        .softcap = softcap,
                        .inv_supervised_tokens = 0.25F});
  run.keep(name + " dx", dx, dtype, kRows * kHidden);
}

void optimizer(Runner& run) {
  std::vector<AdamWTensor> tensors;
  const std::vector<std::int64_t> counts{3 * kOptimizerChunk + 5, 0, 1, 777};
  for (std::size_t t = 0; t < counts.size(); ++t) {
    const auto count = counts[t];
    const auto seed = static_cast<unsigned>(20 + t);
    tensors.push_back(
        {.weight = static_cast<float*>(run.put(random_operand(DType::f32, count, seed))),
         .gradient = static_cast<float*>(run.put(random_operand(DType::f32, count, seed + 9))),
         .exp_avg = run.floats(count),
         .exp_avg_sq = run.floats(count),
         .copy = t == 3 ? run.room(DType::bf16, count) : nullptr,
         .count = count});
  }
  const AdamWTensors list{.host = tensors.data(),
                          .device = run.put(tensors),
                          .size = static_cast<std::int64_t>(tensors.size())};
  double* workspace =
      run.put(std::vector<double>(static_cast<std::size_t>(global_norm_workspace(list))));
  GradientNorm* norm = run.put(std::vector<GradientNorm>(1));
  std::int64_t* step = run.put(std::vector<std::int64_t>{0});
  for (int i = 0; i < 3; ++i) {
    global_norm(run.stream, {.tensors = list, .workspace = workspace, .result = norm});
    adamw_step(run.stream, {.tensors = list,
                            .norm = norm,
                            .step = step,
                            .learning_rate = 0.01,
                            .weight_decay = 0.1,
                            .max_norm = 1.0});
  }
  run.keep("global_norm", &norm->norm, DType::f32, 1);
  run.keep_integers("global_norm finite", &norm->finite, 1);
  for (std::size_t t = 0; t < counts.size(); ++t) {
    const std::string name = "adamw " + std::to_string(t);
    run.keep(name + " weight", tensors[t].weight, DType::f32, counts[t]);
    run.keep(name + " exp_avg", tensors[t].exp_avg, DType::f32, counts[t]);
    run.keep(name + " exp_avg_sq", tensors[t].exp_avg_sq, DType::f32, counts[t]);
  }
  run.keep("adamw copy", tensors[3].copy, DType::bf16, counts[3]);
  // A NaN gradient: the update must leave everything as it is, the count too.
  const float bad = NAN;
  run.memory().upload(tensors[3].gradient + 700, &bad, sizeof bad);
  global_norm(run.stream, {.tensors = list, .workspace = workspace, .result = norm});
  adamw_step(run.stream,
             {.tensors = list, .norm = norm, .step = step, .learning_rate = 1.0, .max_norm = 1.0});
  run.keep_integers("global_norm finite after NaN", &norm->finite, 1);
  run.keep("adamw weight after NaN", tensors[3].weight, DType::f32, counts[3]);
  std::int64_t steps = 0;
  run.memory().download(&steps, step, sizeof steps);
  run.outputs.push_back({"adamw steps",
                         Operand(DType::f32, std::vector{static_cast<double>(steps)}),
                         Agreement::exact, 1.0});
}

void dropouts(Runner& run, DType dtype) {
  void* x = run.put(random_operand(dtype, kRows * kCols, 30));
  void* y = run.put(random_operand(dtype, kRows * kCols, 31));
  Dropout op{.x = x,
             .y = y,
             .rows = kRows,
             .cols = kCols,
             .dtype = dtype,
             .p = 0.1F,
             .seed = 42,
             .step = 3,
             .layer = 17,
             .site = 2,
             .rows_per_micro_batch = 16};
  dropout_forward(run.stream, op);
  run.keep("dropout", y, dtype, kRows * kCols, Agreement::exact);
  std::vector<std::int32_t> micro_batch, row_index;
  for (int row = 0; row < kRows; ++row) {
    micro_batch.push_back(row / 9);
    row_index.push_back(row * 5);
  }
  op.micro_batch = run.put(micro_batch);
  op.row_index = run.put(row_index);
  op.accumulate = true;
  dropout_backward(run.stream, op);
  run.keep("dropout accumulated", y, dtype, kRows * kCols, Agreement::exact);
}

void elementwise(Runner& run, DType dtype) {
  void* x = run.put(random_operand(dtype, kRows * kCols, 32));
  void* half = run.put(random_operand(DType::f16, kRows * kCols, 33));
  for (const DType to : {DType::f32, DType::bf16, DType::f16}) {
    void* y = run.room(to, kRows * kCols);
    copy_rows(run.stream, {.x = x,
                           .y = y,
                           .rows = kRows,
                           .cols = kCols - 5,
                           .x_stride = kCols,
                           .y_stride = kCols,
                           .x_dtype = dtype,
                           .y_dtype = to});
    run.keep(std::string("copy ") + name_of(dtype) + " to", y, to, kRows * kCols, Agreement::exact);
    if (to == DType::f16) continue;
    add_rows(run.stream, {.a = x,
                          .b = y,
                          .y = y,
                          .rows = kRows,
                          .cols = kCols,
                          .a_dtype = dtype,
                          .b_dtype = to,
                          .y_dtype = to,
                          .factor = 0.3F});
    run.keep(std::string("add ") + name_of(dtype) + " to", y, to, kRows * kCols);
  }
  add_bias(run.stream, {.x = x,
                        .bias = half,
                        .rows = kRows,
                        .cols = kCols,
                        .dtype = dtype,
                        .bias_dtype = DType::f16});
  run.keep("add_bias", x, dtype, kRows * kCols, Agreement::exact);
  const auto* factors = static_cast<float*>(run.put(random_operand(DType::f32, kRows, 34)));
  scale_rows(run.stream, {.x = x,
                          .y = x,
                          .row_factor = factors,
                          .rows = kRows,
                          .cols = kCols,
                          .dtype = dtype,
                          .factor = 1.0F / 3});
  run.keep("scale_rows", x, dtype, kRows * kCols, Agreement::exact);
  std::vector<std::int32_t> index;
  for (int row = 0; row < kRows; ++row) index.push_back(row * 11 % static_cast<int>(kRows));
  void* y = run.room(dtype, kRows * kCols);
  gather_rows(run.stream, {.source = half,
                           .index = run.put(index),
                           .y = y,
                           .rows = kRows,
                           .cols = kCols,
                           .source_rows = kRows,
                           .source_dtype = DType::f16,
                           .y_dtype = dtype,
                           .factor = 30.0F});
  run.keep("gather_rows", y, dtype, kRows * kCols, Agreement::exact);
}

void experts(Runner& run, DType dtype) {
  constexpr std::int64_t kExperts = 20, kChoices = 4, kSlots = kRows * kChoices;
  void* logits = run.put(random_operand(dtype, kRows * kExperts, 35));
  float* p = run.floats(kRows * kExperts);
  float* weights = run.floats(kSlots);
  std::int32_t* expert = run.put(std::vector<std::int32_t>(kSlots));
  moe_route(run.stream, {.logits = logits,
                         .probabilities = p,
                         .expert = expert,
                         .weights = weights,
                         .tokens = kRows,
                         .experts = kExperts,
                         .k = kChoices,
                         .dtype = dtype,
                         .normalise = true});
  run.keep("moe p", p, DType::f32, kRows * kExperts);
  run.keep("moe weights", weights, DType::f32, kSlots);
  run.keep_integers("moe expert", expert, kSlots);
  const std::vector<std::int32_t> padding(2 * kChoices, -1);  // the last two tokens are padding
  run.memory().upload(expert + kSlots - 2 * kChoices, padding.data(),
                      padding.size() * sizeof(std::int32_t));
  std::int32_t* offsets = run.put(std::vector<std::int32_t>(kExperts + 1));
  std::int32_t* slot = run.put(std::vector<std::int32_t>(kSlots));
  std::int32_t* token = run.put(std::vector<std::int32_t>(kSlots));
  std::int32_t* position = run.put(std::vector<std::int32_t>(kSlots));
  moe_sort(run.stream, {.expert = expert,
                        .offsets = offsets,
                        .slot = slot,
                        .token = token,
                        .position = position,
                        .tokens = kRows,
                        .experts = kExperts,
                        .k = kChoices});
  run.keep_integers("moe offsets", offsets, kExperts + 1);
  run.keep_integers("moe slot", slot, kSlots);
  run.keep_integers("moe token", token, kSlots);
  run.keep_integers("moe position", position, kSlots);
  void* x = run.put(random_operand(dtype, kSlots * kCols, 36));
  void* y = run.room(dtype, kRows * kCols);
  moe_combine(run.stream, {.x = x,
                           .position = position,
                           .weights = weights,
                           .y = y,
                           .tokens = kRows,
                           .cols = kCols,
                           .k = kChoices,
                           .dtype = dtype});
  run.keep("moe combine", y, dtype, kRows * kCols);
  float* dweights = run.floats(kSlots);
  moe_combine_backward(run.stream, {.dy = y,
                                    .x = x,
                                    .position = position,
                                    .weights = weights,
                                    .dx = x,
                                    .dweights = dweights,
                                    .tokens = kRows,
                                    .cols = kCols,
                                    .k = kChoices,
                                    .dtype = dtype});
  run.keep("moe combine dx", x, dtype, kSlots * kCols, Agreement::close, 2.0);
  // A dot product of 1003 terms of size 1 in another order.
  run.keep("moe combine dweights", dweights, DType::f32, kSlots, Agreement::close,
           dtype == DType::f32 ? 10.0 : 1000.0);
  float* given = static_cast<float*>(run.put(random_operand(DType::f32, kSlots, 37)));
  void* dlogits = run.room(dtype, (kRows - 2) * kExperts);
  moe_route_backward(run.stream, {.probabilities = p,
                                  .expert = expert,
                                  .dweights = given,
                                  .dlogits = dlogits,
                                  .tokens = kRows - 2,
                                  .experts = kExperts,
                                  .k = kChoices,
                                  .dtype = dtype,
                                  .normalise = true});
  run.keep("moe dlogits", dlogits, dtype, (kRows - 2) * kExperts, Agreement::close, 2.0);
}

void weights(Runner& run, DType dtype, std::int64_t count, bool nested) {
  const std::int64_t blocks = nf4_blocks(count);
  std::vector<std::uint8_t> codes, q;
  std::mt19937 generator(38);
  for (std::int64_t i = 0; i < nf4_code_bytes(count); ++i) {
    codes.push_back(static_cast<std::uint8_t>(generator()));
  }
  for (std::int64_t i = 0; i < blocks; ++i) q.push_back(static_cast<std::uint8_t>(generator()));
  Nf4View tensor{.codes = run.put(codes)};
  if (nested) {
    tensor.q = run.put(q);
    tensor.nested_absmax = static_cast<float*>(
        run.put(random_operand(DType::f32, nf4_nested_blocks(count), 39, 0.01)));
    tensor.offset = 0.0371F;
  } else {
    tensor.absmax = static_cast<float*>(run.put(random_operand(DType::f32, blocks, 40, 0.05)));
  }
  void* out = run.room(dtype, count);
  dequantise(run.stream, {.tensor = tensor, .count = count, .out = out, .dtype = dtype});
  run.keep("dequantise " + std::to_string(count) + (nested ? " nested" : ""), out, dtype, count,
           Agreement::exact);
}

}  // namespace

std::vector<Output> run_all_ops(const Stream& stream, Memory& memory) {
  Runner run(stream, memory);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t cols : {std::int64_t{1}, kCols, std::int64_t{3584}}) {
      norms(run, dtype, cols, NormWeight::plain);
      norms(run, dtype, cols, NormWeight::plus_one);
    }
    heads(run, dtype);
    for (const std::int64_t cols : {kCols, std::int64_t{1024}}) {
      gated(run, dtype, GateFunction::silu, cols);
      gated(run, dtype, GateFunction::gelu_tanh, cols);
    }
    loss(run, dtype, 0.0F);
    loss(run, dtype, 5.0F);
    dropouts(run, dtype);
    elementwise(run, dtype);
    experts(run, dtype);
    for (const bool nested : {false, true}) {
      for (const std::int64_t count : {1, 63, 64, 8191, 3 * 16384 + 4096, 100001}) {
        weights(run, dtype, count, nested);
      }
    }
  }
  attention(run, 0.0F, 0, false);
  attention(run, 0.0F, 100, true);
  attention(run, 4.0F, 0, true);
  attention(run, 4.0F, 33, false);
  optimizer(run);
  return std::move(run.outputs);
}

}  // namespace poros::test
