// SPDX-License-Identifier: Apache-2.0
// Cases of the trained part: LoRA's products and the optimizer, over the adapters of rank 16 of a
// 7B model.
#include <map>
#include <memory>

#include "bench_device.hpp"
#include "bench_operands.hpp"
#include "kernels/adamw.hpp"
#include "kernels/low_rank.hpp"

namespace poros::bench {
namespace {

/// x A^T or dy B: `count` products of `width` columns that lie side by side in one matrix.
Case project_case(const std::string& name, std::int64_t width, std::int64_t rank, int count) {
  const std::int64_t stride = count * width;
  return {
      .name = "low_rank_project " + name,
      .shape = shape_of(kRows, stride) + " r " + std::to_string(rank),
      .moved = 2.0 * static_cast<double>(kRows * stride + count * rank * (width + kRows)),
      .operands = {input("x", kRows * stride), input("w", count * rank * width, DType::bf16, 0.02),
                   output("y", kRows * count * rank)},
      .run = [=](const Stream& stream, const Pointers& p) {
        LowRankProject op{.count = count, .rows = kRows};
        for (int i = 0; i < count; ++i) {
          op.parts[static_cast<std::size_t>(i)] = {.x = static_cast<Bf16*>(p[0]) + i * width,
                                                   .w = static_cast<Bf16*>(p[1]) + i * rank * width,
                                                   .y = static_cast<Bf16*>(p[2]) + i * rank,
                                                   .width = width,
                                                   .rank = rank,
                                                   .padded = rank,
                                                   .x_stride = stride,
                                                   .y_stride = count * rank};
        }
        low_rank_project(stream, op);
      }};
}

/// dB of `count` outputs that lie side by side.
Case outer_case(const std::string& name, std::int64_t width, std::int64_t rank, int count) {
  const std::int64_t stride = count * width;
  Operand sums = changed("c", count * rank * width, DType::f32);
  sums.loosen = 500;  // sums of 4096 products, each of magnitude 1
  return {.name = "low_rank_outer " + name,
          .shape = shape_of(kRows, stride) + " r " + std::to_string(rank),
          .moved = 2.0 * static_cast<double>(kRows * (stride + count * rank)) +
                   8.0 * static_cast<double>(count * rank * width),
          .operands = {input("x", kRows * stride), input("p", kRows * count * rank), sums},
          .run = [=](const Stream& stream, const Pointers& p) {
            LowRankOuter op{.count = count, .rows = kRows};
            for (int i = 0; i < count; ++i) {
              op.parts[static_cast<std::size_t>(i)] = {.x = static_cast<Bf16*>(p[0]) + i * width,
                                                       .p = static_cast<Bf16*>(p[1]) + i * rank,
                                                       .c = floats(p[2]) + i * rank * width,
                                                       .width = width,
                                                       .rank = rank,
                                                       .x_stride = stride,
                                                       .p_stride = count * rank,
                                                       .row = rank,
                                                       .column = 1};
            }
            low_rank_outer(stream, op);
          }};
}

Case columns_case() {
  constexpr std::int64_t rank = 16, padded = 64, stride = kHidden + padded;
  Operand weight = changed("weight", kIntermediate * stride);
  weight.exact = true;
  return {.name = "low_rank_columns gate",
          .shape = shape_of(kIntermediate, padded),
          .moved = 2.0 * kIntermediate * (rank + padded),
          .operands = {input("b", kIntermediate * rank), weight},
          .run = [](const Stream& stream, const Pointers& p) {
            low_rank_columns(stream, {.b = p[0],
                                      .y = static_cast<Bf16*>(p[1]) + kHidden,
                                      .rows = kIntermediate,
                                      .rank = rank,
                                      .first = 16,
                                      .padded = padded,
                                      .y_stride = stride,
                                      .scale = 2.0F});
          }};
}

/// Elements of each adapter matrix: A and B of the seven linears of 28 layers.
std::vector<std::int64_t> adapter_sizes() {
  constexpr std::int64_t rank = 16, kv = kKvHeads * kHeadDim;
  std::vector<std::int64_t> sizes;
  for (int layer = 0; layer < 28; ++layer) {
    for (const auto& [in, out] : {std::pair{kHidden, kHidden},
                                  {kHidden, kv},
                                  {kHidden, kv},
                                  {kHidden, kHidden},
                                  {kHidden, kIntermediate},
                                  {kHidden, kIntermediate},
                                  {kIntermediate, kHidden}}) {
      sizes.push_back(rank * in);
      sizes.push_back(rank * out);
    }
  }
  return sizes;
}

/// The list of tensors over four flat buffers; on CUDA uploaded to `on_device` when the buffers are
/// seen for the first time.
class TensorList {
 public:
  AdamWTensors of(const Stream& stream, const std::vector<std::int64_t>& sizes, float* weight,
                  float* gradient, float* exp_avg, float* exp_avg_sq, void* on_device) {
    std::vector<AdamWTensor>& list = made_[gradient];
    auto* const uploaded = static_cast<AdamWTensor*>(on_device);
    const bool on_cuda = stream.device == DeviceKind::cuda;
    if (list.empty()) {
      std::int64_t at = 0;
      for (const std::int64_t size : sizes) {
        list.push_back({.weight = weight == nullptr ? nullptr : weight + at,
                        .gradient = gradient + at,
                        .exp_avg = exp_avg == nullptr ? nullptr : exp_avg + at,
                        .exp_avg_sq = exp_avg_sq == nullptr ? nullptr : exp_avg_sq + at,
                        .count = size});
        at += size;
      }
      if (on_cuda) upload(uploaded, list.data(), list.size() * sizeof(AdamWTensor));
    }
    return {list.data(), on_cuda ? uploaded : nullptr, static_cast<std::int64_t>(list.size())};
  }

 private:
  std::map<const void*, std::vector<AdamWTensor>> made_;
};

}  // namespace

std::vector<Case> lora_cases() {
  return {project_case("down x", kIntermediate, 16, 1),
          project_case("o x", kHidden, 16, 1),
          project_case("gate, up x", kHidden, 32, 1),
          project_case("qkv x", kHidden, 48, 1),
          project_case("gate, up dy", kIntermediate, 16, 2),
          outer_case("gate, up dB", kIntermediate, 16, 2),
          outer_case("o dB", kHidden, 16, 1),
          outer_case("gate, up dA", kHidden, 32, 1),
          outer_case("qkv dA", kHidden, 48, 1),
          columns_case()};
}

std::vector<Case> optimizer_cases() {
  const std::vector<std::int64_t> sizes = adapter_sizes();
  std::int64_t n = 0;
  std::int64_t chunks = 0;
  for (const std::int64_t size : sizes) {
    n += size;
    chunks += (size + kOptimizerChunk - 1) / kOptimizerChunk;
  }
  const auto tensors = static_cast<std::int64_t>(sizes.size());
  const std::string shape = std::to_string(n) + " in " + std::to_string(tensors);
  const Operand list = raw_bytes("list", tensors * std::int64_t{sizeof(AdamWTensor)});
  const Operand second{.name = "exp_avg_sq",
                       .fill = Fill::positive,
                       .bytes = static_cast<std::size_t>(n) * 4,
                       .dtype = DType::f32,
                       .scale = 1e-3};
  const Operand count{.name = "updates", .fill = Fill::zeros, .bytes = sizeof(std::int64_t)};
  const auto of_norm = std::make_shared<TensorList>();
  const auto of_update = std::make_shared<TensorList>();
  Operand updated = second;
  updated.checked = true;
  return {{.name = "global_norm",
           .shape = shape,
           .moved = 4.0 * static_cast<double>(n),
           .operands = {input("gradient", n, DType::f32), output("result", 2, DType::f32),
                        raw_bytes("workspace", 8 * (chunks + tensors)), list},
           .run =
               [=](const Stream& stream, const Pointers& p) {
                 global_norm(stream, {.tensors = of_norm->of(stream, sizes, nullptr, floats(p[0]),
                                                             nullptr, nullptr, p[3]),
                                      .workspace = static_cast<double*>(p[2]),
                                      .result = static_cast<GradientNorm*>(p[1])});
               }},
          {.name = "adamw_step",
           .shape = shape,
           .moved = 28.0 * static_cast<double>(n),
           .operands = {changed("weight", n, DType::f32), input("gradient", n, DType::f32),
                        changed("exp_avg", n, DType::f32), updated, count, list},
           .run = [=](const Stream& stream, const Pointers& p) {
             adamw_step(stream, {.tensors = of_update->of(stream, sizes, floats(p[0]), floats(p[1]),
                                                          floats(p[2]), floats(p[3]), p[5]),
                                 .step = static_cast<std::int64_t*>(p[4]),
                                 .learning_rate = 1e-4,
                                 .weight_decay = 0.01});
           }}};
}

}  // namespace poros::bench
