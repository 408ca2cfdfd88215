// SPDX-License-Identifier: Apache-2.0
#include "all_ops_runner.hpp"
#include "kernels/adamw.hpp"
#include "kernels/cross_entropy.hpp"
#include "kernels/dequantise.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/moe.hpp"
#include "kernels/philox.hpp"

namespace poros::test {

void rounded_exponentials(Runner& run, std::int64_t classes) {
  const CrossEntropyState state{run.floats(kRows), run.floats(kRows), run.floats(kRows)};
  std::vector<std::int32_t> targets(kRows, 3);
  targets[5] = -100;
  void* logits = run.put(random_operand(DType::f32, kRows * classes, 14, 3.0));
  void* exponentials = run.room(DType::bf16, kRows * classes);
  cross_entropy_init(run.stream, state, kRows);
  cross_entropy_accumulate(run.stream, {.logits = logits,
                                        .targets = run.put(targets),
                                        .state = state,
                                        .exponentials = exponentials,
                                        .rows = kRows,
                                        .classes = classes,
                                        .round_exponentials = true});
  const std::string name = "cross_entropy rounded " + std::to_string(classes);
  run.keep(name, exponentials, DType::bf16, kRows * classes, Agreement::close, 2.0);
  run.keep(name + " sum", state.sum, DType::f32, kRows, Agreement::close, 2.0);
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
  constexpr std::int64_t kExperts = 20, kChoices = 4, kSlots = kRows * kChoices, kGranule = 8;
  constexpr std::int64_t kSorted = moe_sorted_rows(kSlots, kExperts, kGranule);
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
  std::int32_t* slot = run.put(std::vector<std::int32_t>(kSorted));
  std::int32_t* token = run.put(std::vector<std::int32_t>(kSorted));
  std::int32_t* position = run.put(std::vector<std::int32_t>(kSlots));
  moe_sort(run.stream, {.expert = expert,
                        .offsets = offsets,
                        .slot = slot,
                        .token = token,
                        .position = position,
                        .tokens = kRows,
                        .experts = kExperts,
                        .k = kChoices,
                        .granule = kGranule});
  run.keep_integers("moe offsets", offsets, kExperts + 1);
  run.keep_integers("moe slot", slot, kSorted);
  run.keep_integers("moe token", token, kSorted);
  run.keep_integers("moe position", position, kSlots);
  std::vector<std::int32_t> of_token;
  for (std::int32_t at = 0; at < kRows; ++at) of_token.push_back(3 * at + 1);
  const std::int32_t* keys = run.put(of_token);
  std::int32_t* micro_batch = run.put(std::vector<std::int32_t>(kSorted));
  std::int32_t* row_index = run.put(std::vector<std::int32_t>(kSorted));
  moe_row_keys(run.stream, {.slot = slot,
                            .token_micro_batch = keys,
                            .token_row_index = keys,
                            .micro_batch = micro_batch,
                            .row_index = row_index,
                            .rows = kSorted,
                            .k = kChoices});
  run.keep_integers("moe row keys' micro-batch", micro_batch, kSorted);
  run.keep_integers("moe row keys' row", row_index, kSorted);
  void* gathered = run.room(dtype, kSorted * kCols);
  gather_rows(run.stream, {.source = run.put(random_operand(dtype, kRows * kCols, 38)),
                           .index = token,
                           .y = gathered,
                           .rows = kSorted,
                           .cols = kCols,
                           .source_rows = kRows,
                           .source_dtype = dtype,
                           .y_dtype = dtype,
                           .negative_is_zero = true});
  run.keep("moe gather", gathered, dtype, kSorted * kCols, Agreement::exact);
  void* x = run.put(random_operand(dtype, kSorted * kCols, 36));
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
  run.keep("moe combine dx", x, dtype, kSorted * kCols, Agreement::close, 2.0);
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

}  // namespace poros::test
