// SPDX-License-Identifier: Apache-2.0
#include "bench_cases.hpp"

#include "bench_operands.hpp"
#include "kernels/attention_softmax.hpp"
#include "kernels/cross_entropy.hpp"
#include "kernels/dequantise.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/gated_activation.hpp"
#include "kernels/philox.hpp"
#include "kernels/rms_norm.hpp"
#include "kernels/rotary.hpp"

namespace poros::bench {
namespace {

Case dequantise_case(const std::string& name, std::int64_t out, std::int64_t in) {
  const std::int64_t count = out * in;
  Operand result = output("weight", count);
  result.exact = true;
  return {.name = "dequantise " + name,
          .shape = shape_of(out, in),
          .moved = static_cast<double>(count) * (0.5 + 1.0 / 64 + 4.0 / 16384 + 2),
          .operands = {raw_bytes("codes", nf4_code_bytes(count)), raw_bytes("q", nf4_blocks(count)),
                       input("nested", nf4_nested_blocks(count), DType::f32, 0.01), result},
          .run = [count](const Stream& stream, const Pointers& p) {
            dequantise(stream, {.tensor = {.codes = static_cast<const std::uint8_t*>(p[0]),
                                           .q = static_cast<const std::uint8_t*>(p[1]),
                                           .nested_absmax = floats(p[2]),
                                           .offset = 0.03F},
                                .count = count,
                                .out = p[3],
                                .dtype = DType::bf16});
          }};
}

/// The folded product's weight: room behind each row, LoRA's B in it (rank 16 of a site's 32).
Case dequantise_with_columns(const std::string& name, std::int64_t out, std::int64_t in) {
  constexpr std::int64_t rank = 16, padded = 32;
  const std::int64_t stride = in + padded;
  Case made = dequantise_case(name + " + columns", out, in);
  made.moved += 2.0 * static_cast<double>(out * (rank + padded));
  made.operands[3] = output("weight", out * stride);
  made.operands[3].exact = true;
  made.operands.push_back(input("b", out * rank));
  made.run = [=](const Stream& stream, const Pointers& p) {
    dequantise(stream, {.tensor = {.codes = static_cast<const std::uint8_t*>(p[0]),
                                   .q = static_cast<const std::uint8_t*>(p[1]),
                                   .nested_absmax = floats(p[2]),
                                   .offset = 0.03F},
                        .count = out * in,
                        .out = p[3],
                        .dtype = DType::bf16,
                        .cols = in,
                        .out_stride = stride,
                        .columns = {.b = p[4],
                                    .y = static_cast<Bf16*>(p[3]) + in,
                                    .rows = out,
                                    .rank = rank,
                                    .first = 16,
                                    .padded = padded,
                                    .y_stride = stride,
                                    .scale = 2.0F}});
  };
  return made;
}

/// That of the input's gradient: A's 16 rows below.
Case dequantise_with_rows(const std::string& name, std::int64_t out, std::int64_t in) {
  const std::int64_t below = 16 * in;
  Case made = dequantise_case(name + " + rows", out, in);
  made.moved += 4.0 * static_cast<double>(below);
  made.operands[3] = output("weight", out * in + below);
  made.operands[3].exact = true;
  made.operands.push_back(input("a", below));
  made.run = [=](const Stream& stream, const Pointers& p) {
    dequantise(stream, {.tensor = {.codes = static_cast<const std::uint8_t*>(p[0]),
                                   .q = static_cast<const std::uint8_t*>(p[1]),
                                   .nested_absmax = floats(p[2]),
                                   .offset = 0.03F},
                        .count = out * in,
                        .out = p[3],
                        .dtype = DType::bf16,
                        .below = p[4],
                        .below_count = below});
  };
  return made;
}

/// cols: also those of a 32B model, whose rows take another number of registers.
Case norm_backward_case(std::int64_t cols) {
  const std::int64_t n = kRows * cols;
  return {.name = "rms_norm_backward + residual",
          .shape = shape_of(kRows, cols),
          .moved = 8.0 * static_cast<double>(n),
          .operands =
              {input("dy", n),
               input("r", n),
               input("weight", cols),
               input("residual_gradient", n),
               {.name = "rstd", .fill = Fill::positive, .bytes = 4 * kRows, .dtype = DType::f32},
               output("dx", n)},
          .run = [cols](const Stream& stream, const Pointers& p) {
            rms_norm_backward(stream, {.dy = p[0],
                                       .r = p[1],
                                       .weight = p[2],
                                       .rstd = floats(p[4]),
                                       .residual_gradient = p[3],
                                       .dx = p[5],
                                       .rows = kRows,
                                       .cols = cols,
                                       .dtype = DType::bf16,
                                       .weight_dtype = DType::bf16});
          }};
}

std::vector<Case> norm_cases() {
  constexpr std::int64_t n = kRows * kHidden;
  Operand rstd = output("rstd", kRows, DType::f32);
  return {{.name = "rms_norm_forward",
           .shape = shape_of(kRows, kHidden),
           .moved = 4.0 * n,
           .operands = {input("x", n), input("weight", kHidden), output("y", n), rstd},
           .run =
               [](const Stream& stream, const Pointers& p) {
                 rms_norm_forward(stream, {.x = p[0],
                                           .weight = p[1],
                                           .y = p[2],
                                           .rstd = floats(p[3]),
                                           .rows = kRows,
                                           .cols = kHidden,
                                           .dtype = DType::bf16,
                                           .weight_dtype = DType::bf16});
               }},
          {.name = "rms_norm_forward + residual",
           .shape = shape_of(kRows, kHidden),
           .moved = 8.0 * n,
           .operands = {input("x", n), input("residual", n), input("weight", kHidden),
                        output("sum", n), output("y", n), rstd},
           .run =
               [](const Stream& stream, const Pointers& p) {
                 rms_norm_forward(stream, {.x = p[0],
                                           .residual = p[1],
                                           .residual_out = p[3],
                                           .weight = p[2],
                                           .y = p[4],
                                           .rstd = floats(p[5]),
                                           .rows = kRows,
                                           .cols = kHidden,
                                           .dtype = DType::bf16,
                                           .weight_dtype = DType::bf16});
               }},
          norm_backward_case(kHidden),
          norm_backward_case(5120)};
}

std::vector<Case> head_cases() {
  constexpr std::int64_t width = (kHeads + kKvHeads) * kHeadDim, half = kHeadDim / 2;
  constexpr std::int64_t positions = 4096;
  Operand sum = output("dk", kRows * kKvHeads * kHeadDim);
  return {{.name = "rotary_forward q and k",
           .shape = shape_of(kRows, width),
           .moved = 4.0 * kRows * width,
           .operands = {changed("x", kRows * width), integers("positions", kRows, positions),
                        input("cos", positions * half, DType::f32, 0.5),
                        input("sin", positions * half, DType::f32, 0.5)},
           .run =
               [](const Stream& stream, const Pointers& p) {
                 rotary_forward(stream, {.x = p[0],
                                         .positions = ints(p[1]),
                                         .cos = floats(p[2]),
                                         .sin = floats(p[3]),
                                         .rows = kRows,
                                         .heads = kHeads + kKvHeads,
                                         .head_dim = kHeadDim,
                                         .rotary_dim = kHeadDim,
                                         .table_positions = positions,
                                         .dtype = DType::bf16});
               }},
          {.name = "group_sum of 7 heads",
           .shape = shape_of(kRows, kHeads * kHeadDim),
           .moved = 2.0 * kRows * (kHeads + kKvHeads) * kHeadDim,
           .operands = {input("x", kRows * kHeads * kHeadDim), sum},
           .run =
               [](const Stream& stream, const Pointers& p) {
                 group_sum(stream, {.x = p[0],
                                    .y = p[1],
                                    .rows = kRows,
                                    .kv_heads = kKvHeads,
                                    .group = kHeads / kKvHeads,
                                    .head_dim = kHeadDim,
                                    .x_dtype = DType::bf16,
                                    .y_dtype = DType::bf16});
               }},
          {.name = "attention_softmax_forward",
           .shape = "8 x 512 x 4096",
           .moved = 8.0 * 8 * 512 * 4096,
           .operands = {changed("scores", 8 * 512 * 4096, DType::f32)},
           .run =
               [](const Stream& stream, const Pointers& p) {
                 attention_softmax_forward(stream, {.scores = floats(p[0]),
                                                    .batch = 8,
                                                    .queries = 512,
                                                    .keys = 4096,
                                                    .mask = {.first_query = 3584},
                                                    .scale = 0.5F});
               }},
          {.name = "attention_softmax_backward",
           .shape = "8 x 512 x 4096",
           .moved = 12.0 * 8 * 512 * 4096,
           .operands = {{.name = "probabilities",
                         .fill = Fill::positive,
                         .bytes = 4 * 8 * 512 * 4096,
                         .dtype = DType::f32,
                         .scale = 2e-4},
                        changed("gradient", 8 * 512 * 4096, DType::f32)},
           .run = [](const Stream& stream, const Pointers& p) {
             attention_softmax_backward(stream, {.probabilities = floats(p[0]),
                                                 .gradient = floats(p[1]),
                                                 .batch = 8,
                                                 .queries = 512,
                                                 .keys = 4096,
                                                 .scale = 0.5F});
           }}};
}

std::vector<Case> mlp_cases() {
  constexpr std::int64_t n = kRows * kIntermediate;
  return {{.name = "gated_activation_forward silu",
           .shape = shape_of(kRows, kIntermediate),
           .moved = 6.0 * n,
           .operands = {input("gate", n), input("up", n), output("y", n)},
           .run =
               [](const Stream& stream, const Pointers& p) {
                 gated_activation_forward(stream, {.gate = p[0],
                                                   .up = p[1],
                                                   .y = p[2],
                                                   .rows = kRows,
                                                   .cols = kIntermediate,
                                                   .dtype = DType::bf16});
               }},
          {.name = "gated_activation_backward silu",
           .shape = shape_of(kRows, kIntermediate),
           .moved = 10.0 * n,
           .operands = {input("dy", n), input("gate", n), input("up", n), output("dgate", n),
                        output("dup", n)},
           .run =
               [](const Stream& stream, const Pointers& p) {
                 gated_activation_backward(stream, {.dy = p[0],
                                                    .gate = p[1],
                                                    .up = p[2],
                                                    .dgate = p[3],
                                                    .dup = p[4],
                                                    .rows = kRows,
                                                    .cols = kIntermediate,
                                                    .dtype = DType::bf16});
               }},
          {.name = "gated_activation_backward silu, y again",
           .shape = shape_of(kRows, kIntermediate),
           .moved = 12.0 * n,
           .operands = {input("dy", n), input("gate", n), input("up", n), output("dgate", n),
                        output("dup", n), output("y", n)},
           .run = [](const Stream& stream, const Pointers& p) {
             gated_activation_backward(stream, {.dy = p[0],
                                                .gate = p[1],
                                                .up = p[2],
                                                .dgate = p[3],
                                                .dup = p[4],
                                                .y = p[5],
                                                .rows = kRows,
                                                .cols = kIntermediate,
                                                .dtype = DType::bf16});
           }}};
}

std::vector<Case> elementwise_cases() {
  constexpr std::int64_t n = kRows * kHidden;
  Operand dropped = output("y", n);
  dropped.exact = true;
  Operand gathered = dropped;
  return {
      {.name = "dropout_forward p 0.05",
       .shape = shape_of(kRows, kHidden),
       .moved = 4.0 * n,
       .operands = {input("x", n), dropped},
       .run =
           [](const Stream& stream, const Pointers& p) {
             dropout_forward(stream, {.x = p[0],
                                      .y = p[1],
                                      .rows = kRows,
                                      .cols = kHidden,
                                      .dtype = DType::bf16,
                                      .p = 0.05F,
                                      .seed = 7,
                                      .rows_per_micro_batch = 512});
           }},
      {.name = "add_rows bf16",
       .shape = shape_of(kRows, kHidden),
       .moved = 6.0 * n,
       .operands = {input("a", n), input("b", n), output("y", n)},
       .run =
           [](const Stream& stream, const Pointers& p) {
             add_rows(stream, {.a = p[0],
                               .b = p[1],
                               .y = p[2],
                               .rows = kRows,
                               .cols = kHidden,
                               .a_dtype = DType::bf16,
                               .b_dtype = DType::bf16,
                               .y_dtype = DType::bf16});
           }},
      {.name = "cast f32 to bf16",
       .shape = shape_of(kRows, kHidden),
       .moved = 6.0 * n,
       .operands = {input("x", n, DType::f32), output("y", n)},
       .run = [](const Stream& stream,
                 const Pointers& p) { cast(stream, p[0], DType::f32, p[1], DType::bf16, n); }},
      {.name = "gather_rows (embedding)",
       .shape = shape_of(kRows, kHidden),
       .moved = 4.0 * n,
       .operands = {input("source", 20000 * kHidden), integers("index", kRows, 20000), gathered},
       .run = [](const Stream& stream, const Pointers& p) {
         gather_rows(stream, {.source = p[0],
                              .index = ints(p[1]),
                              .y = p[2],
                              .rows = kRows,
                              .cols = kHidden,
                              .source_rows = 20000,
                              .source_dtype = DType::bf16,
                              .y_dtype = DType::bf16});
       }}};
}

std::vector<Case> loss_cases() {
  constexpr std::int64_t classes = 16384, n = kRows * classes;
  Operand max = output("max", kRows, DType::f32);
  Operand sum = output("sum", kRows, DType::f32);
  const auto positive = [](const char* name) {
    return Operand{.name = name, .fill = Fill::positive, .bytes = 4 * kRows, .dtype = DType::f32};
  };
  return {{.name = "cross_entropy_accumulate, exponentials",
           .shape = shape_of(kRows, classes),
           .moved = 4.0 * n,
           .operands = {input("logits", n), integers("targets", kRows, classes), max, sum,
                        output("target_logit", kRows, DType::f32), output("exponentials", n),
                        output("rescale", kRows, DType::f32)},
           .run =
               [](const Stream& stream, const Pointers& p) {
                 const CrossEntropyState state{floats(p[2]), floats(p[3]), floats(p[4])};
                 cross_entropy_init(stream, state, kRows);
                 cross_entropy_accumulate(stream, {.logits = p[0],
                                                   .targets = ints(p[1]),
                                                   .state = state,
                                                   .exponentials = p[5],
                                                   .rescale = floats(p[6]),
                                                   .rows = kRows,
                                                   .classes = classes,
                                                   .dtype = DType::bf16});
               }},
          {.name = "cross_entropy_gradient",
           .shape = shape_of(kRows, classes),
           .moved = 4.0 * n,
           .operands = {changed("logits", n), integers("targets", kRows, classes), positive("max"),
                        positive("sum"), positive("target_logit")},
           .run = [](const Stream& stream, const Pointers& p) {
             cross_entropy_gradient(stream, {.logits = p[0],
                                             .targets = ints(p[1]),
                                             .state = {floats(p[2]), floats(p[3]), floats(p[4])},
                                             .rows = kRows,
                                             .classes = classes,
                                             .dtype = DType::bf16,
                                             .inv_supervised_tokens = 1.0F});
           }}};
}

}  // namespace

std::vector<Case> all_cases() {
  std::vector<Case> cases{dequantise_case("down_proj", kHidden, kIntermediate),
                          dequantise_case("gate_proj", kIntermediate, kHidden),
                          dequantise_case("q_proj", kHidden, kHidden),
                          dequantise_case("768 x 2048 of an expert", 768, 2048),
                          dequantise_with_columns("gate_proj", kIntermediate, kHidden),
                          dequantise_with_rows("down_proj", kHidden, kIntermediate)};
  for (const auto& group : {lora_cases(), norm_cases(), head_cases(), mlp_cases(),
                            elementwise_cases(), loss_cases(), optimizer_cases(), moe_cases()}) {
    cases.insert(cases.end(), group.begin(), group.end());
  }
  return cases;
}

}  // namespace poros::bench
