// SPDX-License-Identifier: Apache-2.0
// The thin products of a LoRA branch (Hu et al. 2021), where one side has only rank columns: bound
// by memory, so each reads its wide operand once. Sums are fp32 in an order that depends on shapes
// alone. All matrices are bf16 on CUDA, bf16 or f32 on the CPU; gradients are f32.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/device.hpp"
#include "kernels/dtype.hpp"

namespace poros {

inline constexpr int kLowRankParts = 4;             // products of one launch
inline constexpr std::int64_t kLowRankMost = 128;   // columns of the thin side
inline constexpr std::int64_t kLowRankRows = 64;    // rows of the wide side come in multiples of it
inline constexpr std::int64_t kLowRankWidth = 32;   // its columns too
inline constexpr std::int64_t kLowRankGranule = 8;  // columns of the thin side
inline constexpr std::int64_t kLowRankGroup = 512;  // rows of one partial sum of an outer product

/// y[i, j] = round(scale * sum_c x[i, c] * w[j, c]) of each part, for i < rows; columns of y from
/// rank to padded are set to 0. x A^T of the forward, and dy B of the backward.
struct LowRankProject {
  struct Part {
    const void* x = nullptr;  // [rows, width], x_stride
    const void* w = nullptr;  // [rank, width], contiguous
    void* y = nullptr;        // [rows, padded], y_stride
    std::int64_t width = 0, rank = 0, padded = 0;
    std::int64_t x_stride = 0, y_stride = 0;
    float scale = 1.0F;
  };
  std::array<Part, kLowRankParts> parts = {};
  int count = 0;
  std::int64_t rows = 0;
  DType dtype = DType::bf16;
};
void low_rank_project(const Stream& stream, const LowRankProject& op);

/// c[m * row + j * column] += scale * sum_i x[i, m] * p[i, j] of each part, over i < rows: partial
/// sums of kLowRankGroup rows each, added up in ascending order. dB = dy^T p and dA = q^T x.
struct LowRankOuter {
  struct Part {
    const void* x = nullptr;  // [rows, width], x_stride
    const void* p = nullptr;  // [rows, rank], p_stride
    float* c = nullptr;
    std::int64_t width = 0, rank = 0;
    std::int64_t x_stride = 0, p_stride = 0;
    std::int64_t row = 0, column = 0;  // strides of c: dB [width, rank] is {rank, 1}, dA {1, width}
    float scale = 1.0F;
  };
  std::array<Part, kLowRankParts> parts = {};
  int count = 0;
  std::int64_t rows = 0;
  DType dtype = DType::bf16;
};
void low_rank_outer(const Stream& stream, const LowRankOuter& op);

/// Adapters in compute dtype, B turned to [rank, out] (the form that low_rank_project and the
/// folded product read): y[offset + j * out + i] = round(x[offset + i * rank + j]) for each matrix
/// of the list. @param list [count] {offset, out, rank} in memory of the stream's device
struct LowRankTranspose {
  const float* x = nullptr;
  void* y = nullptr;
  const std::int64_t* list = nullptr;
  std::int64_t count = 0, most_out = 0;
  DType dtype = DType::bf16;
};
void low_rank_transpose(const Stream& stream, const LowRankTranspose& op);

/// The columns that a dequantised weight gets to carry LoRA's B: y[i, j] = round(scale * b[j -
/// first, i]) for first <= j < first + rank, else 0, for i < rows and j < padded. b is [rank, rows]
/// (low_rank_transpose) or with `turned` false [rows, rank].
struct LowRankColumns {
  const void* b = nullptr;
  void* y = nullptr;
  std::int64_t rows = 0, rank = 0, first = 0, padded = 0, y_stride = 0;
  bool turned = true;
  float scale = 1.0F;
  DType dtype = DType::bf16;
};
void low_rank_columns(const Stream& stream, const LowRankColumns& op);

/// Whether a product's sizes are such that low_rank_project and low_rank_outer take them.
[[nodiscard]] bool low_rank_fits(std::int64_t rows, std::int64_t width, std::int64_t rank);

}  // namespace poros
