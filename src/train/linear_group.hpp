// SPDX-License-Identifier: Apache-2.0
// The linears of one input site with their LoRA branches, forward and backward:
//   y_j = W_j x + bias_j + s_j B_j (A_j xd),  xd = dropout(x) shared by the site
//   dx  = sum_j W_j^T dy_j + dropout^T(sum_j s_j A_j^T B_j^T dy_j)
//   dB_j += s_j dy_j^T (A_j xd),  dA_j += s_j (B_j^T dy_j)^T xd
// dA and dB are sums over fixed groups of rows, in fp32 and in the order of the rows.
#pragma once

#include <array>
#include <cstddef>

#include "kernels/gated_activation.hpp"
#include "kernels/philox.hpp"
#include "train/layer_weights.hpp"
#include "train/workspace.hpp"

namespace poros {

/// A matrix of activations: rows of `stride` elements.
struct Matrix {
  void* data = nullptr;
  std::int64_t stride = 0;
};

/// What the forward and the backward of a group work on.
struct LinearGroupCall {
  const LinearGroup* group = nullptr;
  const std::byte* slab = nullptr;  // of the layer
  std::int64_t rows = 0;
  Matrix x;                 // [rows, in]
  Matrix dropped;           // xd; equals x where nothing is dropped. Only with LoRA
  std::array<Matrix, 3> y;  // output (forward) or its gradient (backward) of each linear
  Matrix addend;            // forward, one linear: y is its output plus this; null data: no
  /// xd A^T [rows, rank]: written by the forward, read by the backward. Where it stands right
  /// behind x's columns, x W^T and the LoRA term are one product.
  Matrix low_rank;
};

/// xd A^T of the site, if it is adapted.
void low_rank_forward(const StepContext& context, const LinearGroupCall& call);

/// The same, and y of each linear.
void linear_group_forward(const StepContext& context, const LinearGroupCall& call);

/// Where the backward puts the gradient of x.
struct InputGradient {
  Matrix dx;                // null data: not wanted
  bool accumulate = false;  // add to what dx holds
  /// Scratch [rows, rank] for s B^T dy. Where it stands right behind the columns of the last y, its
  /// product with A is a part of the last product with a weight.
  Matrix low_rank_gradient;
  /// With dropout: scratch [rows, in] for the gradient of xd, and how the mask is keyed. Null data:
  /// xd is x.
  void* dropped_gradient = nullptr;
  Dropout mask;
  bool leave_mask = false;  // the caller takes dropped_gradient through the mask
};

/// Gradients of A and B (added up), then of x: dx may be x itself.
void linear_group_backward(const StepContext& context, const LinearGroupCall& call,
                           const InputGradient& gradient);

/// How the MLP's gate is computed.
[[nodiscard]] GateFunction gate_function(const MlpShape& shape);

/// The mask of a dense site of a sweep: rows are its tokens.
[[nodiscard]] Dropout site_mask(const StepContext& context, const SweepTokens& sweep,
                                std::int64_t layer, Site site, std::int64_t cols);

}  // namespace poros
