// SPDX-License-Identifier: Apache-2.0
// A mixture of experts in the place of a dense MLP: tokens sorted by expert (stable), one run of
// linears an expert, joined again by the router's weights. The router is frozen but differentiated
// through. Padding tokens are left out; each expert's rows are padded with zeros to whole granules
// (NumericalPlan::expert_row_granule). The host waits once a layer and pass, for the row counts.
//
// Dropout of an expert's gate and up is that of the layer's MLP input (one mask a token, shared by
// its experts); that of an expert's down is keyed by token * k + choice.
#pragma once

#include <cstddef>

#include "train/layer_weights.hpp"
#include "train/workspace.hpp"

namespace poros {

struct MoeCall {
  const LayerWeights* layer = nullptr;
  const std::byte* slab = nullptr;
  const SweepTokens* sweep = nullptr;
  std::int64_t hidden = 0;
  void* input = nullptr;  // [rows, hidden], after the norm
  /// Forward: [rows, hidden], null: not wanted. Backward: its gradient, gradient_stride.
  void* output = nullptr;
};

/// Leaves in the workspace what moe_backward needs.
void moe_forward(const StepContext& context, const MoeCall& call);

/// @param input_gradient [rows, hidden]
void moe_backward(const StepContext& context, const MoeCall& call, void* input_gradient);

}  // namespace poros
