// SPDX-License-Identifier: Apache-2.0
// Routing of a mixture of experts: choose k experts a token, order tokens by expert, join outputs.
// Flat slot f = token*k + j is token's j-th choice. Every sum has a fixed order.
#pragma once

#include <cstdint>

#include "kernels/device.hpp"
#include "kernels/dtype.hpp"

namespace poros {

inline constexpr std::int64_t kMaxExperts = 1024, kMaxExpertsPerToken = 32;

/// p = softmax(logits) in f32; the k largest (ties: lower expert first), descending; weights =
/// their p, divided by their sum with `normalise`; rounded to weights_dtype (HF casts them to the
/// activations' dtype) but stored as f32.
struct MoeRoute {
  const void* logits = nullptr;    // [tokens, experts] in dtype
  float* probabilities = nullptr;  // [tokens, experts]
  std::int32_t* expert = nullptr;  // [tokens, k]
  float* weights = nullptr;        // [tokens, k]
  std::int64_t tokens = 0, experts = 0, k = 0;
  DType dtype = DType::f32;          // f32 or bf16
  DType weights_dtype = DType::f32;  // f32 or bf16
  bool normalise = false;
};
void moe_route(const Stream& stream, const MoeRoute& op);

/// dlogits from the gradient of the weights. Rounding of the weights counts as the identity.
struct MoeRouteBackward {
  const float* probabilities = nullptr;  // [tokens, experts]
  const std::int32_t* expert = nullptr;  // [tokens, k]
  const float* dweights = nullptr;       // [tokens, k]
  void* dlogits = nullptr;               // [tokens, experts] in dtype
  std::int64_t tokens = 0, experts = 0, k = 0;
  DType dtype = DType::f32;
  bool normalise = false;
};
void moe_route_backward(const Stream& stream, const MoeRouteBackward& op);

/// Most rows that moe_sort makes of `slots`, whatever the router chose: each expert that has slots
/// gets a multiple of `granule` rows.
[[nodiscard]] constexpr std::int64_t moe_sorted_rows(std::int64_t slots, std::int64_t experts,
                                                     std::int64_t granule) {
  const std::int64_t used = slots < experts ? slots : experts;
  return (slots + used * (granule - 1)) / granule * granule;
}

/// Stable sort of the tokens*k slots by expert. Sorted rows offsets[e] .. offsets[e+1]-1 belong to
/// expert e: its slots in ascending order, then rows of padding up to a multiple of `granule`,
/// which have slot and token -1. Tokens of padding may carry expert -1: they are left out (their
/// `position` is -1).
struct MoeSort {
  const std::int32_t* expert = nullptr;  // [tokens, k]
  std::int32_t* offsets = nullptr;       // [experts + 1]
  std::int32_t* slot = nullptr;          // [moe_sorted_rows] sorted row -> slot; unused tail -1
  std::int32_t* token = nullptr;  // [moe_sorted_rows] sorted row -> token (for gather_rows), or -1
  std::int32_t* position = nullptr;  // [tokens*k] slot -> sorted row, or -1
  std::int64_t tokens = 0, experts = 0, k = 0;
  std::int64_t granule = 1;
};
void moe_sort(const Stream& stream, const MoeSort& op);

/// What keys the dropout mask of sorted rows (philox.hpp): micro_batch[r] = the token's,
/// row_index[r] = the token's * k + choice; 0 for rows of padding.
struct MoeRowKeys {
  const std::int32_t* slot = nullptr;               // [rows], from moe_sort
  const std::int32_t* token_micro_batch = nullptr;  // [tokens]
  const std::int32_t* token_row_index = nullptr;    // [tokens]
  std::int32_t* micro_batch = nullptr;              // [rows]
  std::int32_t* row_index = nullptr;                // [rows]
  std::int64_t rows = 0, k = 0;
};
void moe_row_keys(const Stream& stream, const MoeRowKeys& op);

/// y[token] = sum over j = 0..k-1 of weights[token, j] * x[position[token, j]], in that order, f32,
/// rounded once. weights null: all 1 (the backward of gathering).
struct MoeCombine {
  const void* x = nullptr;                 // [sorted rows, cols]
  const std::int32_t* position = nullptr;  // [tokens, k]
  const float* weights = nullptr;          // [tokens, k] or null
  void* y = nullptr;                       // [tokens, cols]
  std::int64_t tokens = 0, cols = 0, k = 0;
  DType dtype = DType::f32;  // of x and y: f32 or bf16
};
void moe_combine(const Stream& stream, const MoeCombine& op);

/// dx[position] = weight * dy[token] for each slot that has a position; dweights = dot(dy[token],
/// x[position]) in f32 (0 without a position).
struct MoeCombineBackward {
  const void* dy = nullptr;  // [tokens, cols], dy_stride (0: contiguous)
  const void* x = nullptr;   // [sorted rows, cols], from the forward
  const std::int32_t* position = nullptr;
  const float* weights = nullptr;  // [tokens, k]
  void* dx = nullptr;              // [sorted rows, cols]; may be x
  float* dweights = nullptr;       // [tokens, k]; null: not wanted
  std::int64_t tokens = 0, cols = 0, k = 0, dy_stride = 0;
  DType dtype = DType::f32;
};
void moe_combine_backward(const Stream& stream, const MoeCombineBackward& op);

}  // namespace poros
