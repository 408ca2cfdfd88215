// SPDX-License-Identifier: Apache-2.0
// Cases of a mixture of experts: Qwen3-30B-A3B, 128 experts of 768, 8 a token, hidden 2048.
#include "bench_operands.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/moe.hpp"

namespace poros::bench {
namespace {

constexpr std::int64_t kExperts = 128, kChoices = 8, kWidth = 2048, kGranule = 32;
constexpr std::int64_t kSlots = kRows * kChoices;
constexpr std::int64_t kSorted = moe_sorted_rows(kSlots, kExperts, kGranule);

Operand int_output(std::string name, std::int64_t count) {
  Operand operand = output(std::move(name), count, DType::f32);
  operand.exact = true;
  return operand;
}
/// Slot -> sorted row: a permutation.
Operand positions() {
  return {.name = "position", .fill = Fill::iota, .bytes = kSlots * 4};
}

Case route_case() {
  return {.name = "moe_route",
          .shape = shape_of(kRows, kExperts),
          .moved = static_cast<double>(kRows * kExperts) * (2 + 4) + 8.0 * kSlots,
          .operands = {input("logits", kRows * kExperts),
                       output("p", kRows * kExperts, DType::f32),
                       {.name = "expert", .fill = Fill::zeros, .bytes = kSlots * 4},
                       output("weights", kSlots, DType::f32)},
          .run = [](const Stream& stream, const Pointers& p) {
            moe_route(stream, {.logits = p[0],
                               .probabilities = floats(p[1]),
                               .expert = ints(p[2]),
                               .weights = floats(p[3]),
                               .tokens = kRows,
                               .experts = kExperts,
                               .k = kChoices,
                               .dtype = DType::bf16,
                               .normalise = true});
          }};
}

Case sort_case() {
  return {.name = "moe_sort",
          .shape = std::to_string(kSlots) + " of " + std::to_string(kExperts),
          .moved = 4.0 * (2 * kSlots + 2 * kSorted),
          .operands = {integers("expert", kSlots, kExperts), int_output("offsets", kExperts + 1),
                       int_output("slot", kSorted), int_output("token", kSorted),
                       int_output("position", kSlots)},
          .run = [](const Stream& stream, const Pointers& p) {
            moe_sort(stream, {.expert = ints(p[0]),
                              .offsets = ints(p[1]),
                              .slot = ints(p[2]),
                              .token = ints(p[3]),
                              .position = ints(p[4]),
                              .tokens = kRows,
                              .experts = kExperts,
                              .k = kChoices,
                              .granule = kGranule});
          }};
}

Case gather_case() {
  Operand rows = output("rows", kSlots * kWidth);
  rows.exact = true;
  return {.name = "gather_rows of experts",
          .shape = shape_of(kSlots, kWidth),
          // Tokens are read once, and come from the L2 cache for their other experts.
          .moved = 2.0 * kWidth * (kRows + kSlots) + 4.0 * kSlots,
          .operands = {input("x", kRows * kWidth), integers("token", kSlots, kRows), rows},
          .run = [](const Stream& stream, const Pointers& p) {
            gather_rows(stream, {.source = p[0],
                                 .index = ints(p[1]),
                                 .y = p[2],
                                 .rows = kSlots,
                                 .cols = kWidth,
                                 .source_rows = kRows,
                                 .source_dtype = DType::bf16,
                                 .y_dtype = DType::bf16,
                                 .negative_is_zero = true});
          }};
}

Case combine_case() {
  return {.name = "moe_combine of 8",
          .shape = shape_of(kRows, kWidth),
          .moved = 2.0 * kRows * kWidth * (kChoices + 1),
          .operands = {input("x", kSlots * kWidth), positions(),
                       input("weights", kSlots, DType::f32), output("y", kRows * kWidth)},
          .run = [](const Stream& stream, const Pointers& p) {
            moe_combine(stream, {.x = p[0],
                                 .position = ints(p[1]),
                                 .weights = floats(p[2]),
                                 .y = p[3],
                                 .tokens = kRows,
                                 .cols = kWidth,
                                 .k = kChoices,
                                 .dtype = DType::bf16});
          }};
}

Case combine_backward_case() {
  Operand dots = output("dweights", kSlots, DType::f32);
  dots.loosen = 1000;  // sums of 2048 products, each of magnitude 1
  return {.name = "moe_combine_backward of 8",
          .shape = shape_of(kRows, kWidth),
          .moved = 2.0 * kWidth * (kRows + 2 * kSlots) + 8.0 * kSlots,
          .operands = {input("dy", kRows * kWidth), input("x", kSlots * kWidth), positions(),
                       input("weights", kSlots, DType::f32), output("dx", kSlots * kWidth), dots},
          .run = [](const Stream& stream, const Pointers& p) {
            moe_combine_backward(stream, {.dy = p[0],
                                          .x = p[1],
                                          .position = ints(p[2]),
                                          .weights = floats(p[3]),
                                          .dx = p[4],
                                          .dweights = floats(p[5]),
                                          .tokens = kRows,
                                          .cols = kWidth,
                                          .k = kChoices,
                                          .dtype = DType::bf16});
          }};
}

}  // namespace

std::vector<Case> moe_cases() {
  return {route_case(), sort_case(), gather_case(), combine_case(), combine_backward_case()};
}

}  // namespace poros::bench
