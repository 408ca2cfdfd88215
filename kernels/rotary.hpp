// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding (Su et al. 2021) in the rotate-halves form of HF checkpoints.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/device.hpp"
#include "kernels/dtype.hpp"

namespace poros {

/// Fills cos and sin, each [positions, inv_freq.size()] in host memory: the angle is the float
/// product position * inv_freq (as HF computes it), its cosine and sine are multiplied by
/// attention_factor. Runs on the host; copy the tables to the device for CUDA.
void build_rotary_table(std::span<const float> inv_freq, float attention_factor,
                        std::int64_t positions, float* cos, float* sin);

/// In place on x [rows, heads, head_dim]: with h = rotary_dim/2 and i < h
///   x[i] <- x[i]*cos - x[i+h]*sin;  x[i+h] <- x[i+h]*cos + x[i]*sin
/// at the row's position; dimensions from rotary_dim on stay. The backward is the transpose (sin
/// negated), applied to the gradient. q and k that lie side by side are rotated in one call. With
/// `source` the values are read there instead of in x; then all dimensions have to turn.
struct Rotary {
  void* x = nullptr;
  const void* source = nullptr;             // [rows, heads, head_dim], source_stride; or null
  std::int64_t source_stride = 0;           // elements from row to row; 0: heads*head_dim
  const std::int32_t* positions = nullptr;  // [rows], 0 <= position < table_positions
  const float* cos = nullptr;               // [table_positions, rotary_dim/2]
  const float* sin = nullptr;
  std::int64_t rows = 0, heads = 0, head_dim = 0, rotary_dim = 0;
  std::int64_t row_stride = 0;  // elements from row to row; 0: heads*head_dim
  std::int64_t table_positions = 0;
  DType dtype = DType::f32;  // f32 or bf16
};
/// A position outside the table throws on the CPU; on CUDA the row becomes NaN.
void rotary_forward(const Stream& stream, const Rotary& op);
void rotary_backward(const Stream& stream, const Rotary& op);

}  // namespace poros
