// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "all_ops_runner.hpp"
#include "kernels/dequantise.hpp"
#include "kernels/low_rank.hpp"

namespace poros::test {
namespace {

/// rows, widths and ranks that end in the middle of a tile, a group and a launch's widest part.
constexpr std::int64_t kTokens = 1088;
constexpr std::int64_t kWidths[3] = {96, 2592, 64};
/// A sum of 1088 products of magnitude 1 is some 33, and its error as many times that of a product.
constexpr double kSums = 60;

void products(Runner& run, std::int64_t rank) {
  constexpr DType dtype = DType::bf16;
  const std::string name = "low_rank " + std::to_string(rank);
  const std::int64_t padded = (rank + 15) / 16 * 16;
  LowRankProject project{.count = 3, .rows = kTokens, .dtype = dtype};
  LowRankOuter outer{.count = 3, .rows = kTokens, .dtype = dtype};
  for (std::size_t i = 0; i < 3; ++i) {
    const std::int64_t width = kWidths[i], stride = width + padded;
    const auto seed = static_cast<unsigned>(200 + i);
    auto* x = run.put(random_operand(dtype, kTokens * stride, seed));
    // y lies in the last columns of x's own rows, as the folded product wants it.
    auto* y = static_cast<Bf16*>(x) + width;
    project.parts[i] = {.x = x,
                        .w = run.put(random_operand(dtype, rank * width, seed + 10, 0.05)),
                        .y = y,
                        .width = width,
                        .rank = rank,
                        .padded = padded,
                        .x_stride = stride,
                        .y_stride = stride,
                        .scale = i == 1 ? 0.5F : 1.0F};
    outer.parts[i] = {
        .x = x,
        // Not y: its roundings may differ between devices.
        .p = run.put(random_operand(dtype, kTokens * stride, seed + 30)),
        .c = static_cast<float*>(run.put(random_operand(DType::f32, rank * width, seed + 20))),
        .width = width,
        .rank = rank,
        .x_stride = stride,
        .p_stride = stride,
        .row = i == 2 ? 1 : rank,
        .column = i == 2 ? width : 1,
        .scale = i == 0 ? 2.0F : 1.0F};
  }
  low_rank_project(run.stream, project);
  low_rank_outer(run.stream, outer);
  for (std::size_t i = 0; i < 3; ++i) {
    const std::string part = name + " part " + std::to_string(i);
    run.keep(part + " x and y", outer.parts[i].x, dtype, kTokens * outer.parts[i].x_stride);
    run.keep(part + " c", outer.parts[i].c, DType::f32, rank * kWidths[i], Agreement::close, kSums);
  }
}

}  // namespace

void low_rank(Runner& run) {
  for (const std::int64_t rank : {8, 16, 40, 128}) products(run, rank);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    constexpr std::int64_t kFlat = 64 + 37 * 8 + 11 * 5;
    const auto* master = static_cast<float*>(run.put(random_operand(DType::f32, kFlat, 240)));
    void* turned = run.room(dtype, kFlat);
    low_rank_transpose(run.stream,
                       {.x = master,
                        .y = turned,
                        .list = run.put(std::vector<std::int64_t>{64, 37, 8, 64 + 37 * 8, 11, 5}),
                        .count = 2,
                        .most_out = 37,
                        .dtype = dtype});
    run.keep("low_rank_transpose", turned, dtype, kFlat, Agreement::exact);
    for (const bool is_turned : {true, false}) {
      void* columns = run.room(dtype, 37 * 40);
      const auto offset = static_cast<std::ptrdiff_t>(64 * bytes_of(dtype));
      low_rank_columns(run.stream, {.b = static_cast<std::byte*>(turned) + offset,
                                    .y = columns,
                                    .rows = 37,
                                    .rank = 8,
                                    .first = 8,
                                    .padded = 32,
                                    .y_stride = 40,
                                    .turned = is_turned,
                                    .scale = 0.3F,
                                    .dtype = dtype});
      run.keep("low_rank_columns", columns, dtype, 37 * 40, Agreement::exact);
    }
  }
}

void strided_weights(Runner& run, DType dtype, std::int64_t rows, std::int64_t cols) {
  const std::int64_t count = rows * cols, stride = cols + 24;
  std::vector<std::uint8_t> codes;
  std::mt19937 generator(41);
  for (std::int64_t i = 0; i < nf4_code_bytes(count); ++i) {
    codes.push_back(static_cast<std::uint8_t>(generator()));
  }
  const Nf4View tensor{
      .codes = run.put(codes),
      .absmax = static_cast<float*>(run.put(random_operand(DType::f32, nf4_blocks(count), 42)))};
  void* out = run.put(random_operand(dtype, rows * stride, 43));  // what lies between stays
  dequantise(run.stream, {.tensor = tensor,
                          .count = count,
                          .out = out,
                          .dtype = dtype,
                          .cols = cols,
                          .out_stride = stride});
  run.keep("dequantise rows of " + std::to_string(cols), out, dtype, rows * stride,
           Agreement::exact);

  // What goes behind the rows or below them in the same launch.
  const void* b = run.put(random_operand(dtype, 16 * rows, 43));
  const auto after = [&](void* data, std::int64_t elements) {
    return static_cast<std::byte*>(data) +
           static_cast<std::ptrdiff_t>(elements) * static_cast<std::ptrdiff_t>(bytes_of(dtype));
  };
  void* with_columns = run.room(dtype, rows * stride);
  dequantise(run.stream, {.tensor = tensor,
                          .count = count,
                          .out = with_columns,
                          .dtype = dtype,
                          .cols = cols,
                          .out_stride = stride,
                          .columns = {.b = b,
                                      .y = after(with_columns, cols),
                                      .rows = rows,
                                      .rank = 16,
                                      .first = 3,
                                      .padded = 24,
                                      .y_stride = stride,
                                      .scale = 0.7F,
                                      .dtype = dtype}});
  run.keep("dequantise and columns", with_columns, dtype, rows * stride, Agreement::exact);
  void* with_rows = run.room(dtype, count + 3 * cols + 8);
  dequantise(run.stream, {.tensor = tensor,
                          .count = count,
                          .out = with_rows,
                          .dtype = dtype,
                          .below = b,
                          .below_count = std::min(3 * cols + 5, 16 * rows)});
  run.keep("dequantise and rows below", with_rows, dtype, count + 3 * cols + 8, Agreement::exact);
}

}  // namespace poros::test
