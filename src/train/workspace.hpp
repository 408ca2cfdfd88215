// SPDX-License-Identifier: Apache-2.0
// Typed pointers to the buffers of a step (plan/step_buffers.cpp names and sizes them), and the
// small context that every part of the executor shares.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device.hpp"
#include "kernels/dtype.hpp"
#include "plan/numerical_plan.hpp"
#include "train/arena.hpp"
#include "train/gemm.hpp"

namespace poros {

class FlashAttention;

[[nodiscard]] constexpr DType dtype_of(ComputeType type) {
  return type == ComputeType::bf16 ? DType::bf16 : DType::f32;
}

/// What a sweep's kernels need to know of its tokens; device pointers, [rows] each.
struct SweepTokens {
  std::int64_t tokens = 0, rows = 0;
  const std::int32_t* documents = nullptr;
  const std::int32_t* micro_batch = nullptr;
  const std::int32_t* row_index = nullptr;
  std::vector<const std::int32_t*> positions;      // one a rotary table
  std::vector<std::int32_t> host_document_begin;   // a host copy that tiling needs
  const std::int32_t* document_offsets = nullptr;  // [document_slots + 1]; null on the CPU
  std::int64_t document_slots = 0;
};

struct RotaryTable {
  const float* cos = nullptr;
  const float* sin = nullptr;
  std::int64_t rows = 0;
};

/// Null where the plan has no such buffer. Shapes with T = row capacity, H = hidden, S = the rows
/// of all experts (moe_sorted_rows) for mixtures of experts, else T. Inputs of adapted sites
/// (norm_attention, attention, norm_mlp, activated) have lora_padding(rank) columns more, for x
/// A^T; gradients of outputs (qkv_gradient, gate_up, branch_gradient) have as many for s B^T dy.
struct Workspace {
  Workspace(Arena& arena, const MemoryPlan& plan, std::size_t rotary_tables);

  /// gate_up, activated and the experts' matrices are there from here to give_back().
  void begin_mlp();
  /// attention_gradient and qkv_gradient are.
  void begin_attention_gradient();
  /// logits and exponentials (which may be the same place) are.
  void begin_logits();
  void give_back();

  void* weight;  // the dequantised operand
  std::uint64_t weight_bytes;
  void *norm_attention, *norm_mlp, *norm_gradient, *middle, *branch;  // [T, H]
  void *branch_mlp, *branch_gradient;                                 // [T, H], with post norms
  float *norm_attention_rstd, *norm_mlp_rstd, *post_attention_rstd, *post_mlp_rstd;  // [T]
  void *qkv, *qkv_gradient;                     // [T, query + 2 key]
  void* qk_raw;                                 // [T, query + key], before q/k norm
  float *q_rstd, *k_rstd;                       // [T, heads], [T, kv heads]
  void *attention, *attention_gradient;         // [T, query]
  float *scores, *score_gradients, *logsumexp;  // one tile
  void* scores_rounded;
  float* key_value_gradient;  // [T, 2 key] with bf16
  void *gate_up, *activated;  // [S, 2I], [S, I]; its gradient takes its place
  void *dropped, *dropped_gradient;
  float* logits;  // [T, vocabulary chunk]
  void* exponentials;
  std::vector<RotaryTable> rotary;

  struct Moe {
    void* logits;
    float *probabilities, *weights, *weight_gradients;
    std::int32_t *expert, *offsets, *slot, *token, *position, *micro_batch, *row_index;
    std::vector<std::int32_t> host_offsets;  // of the layer that was routed last
    void *input, *output, *dropped_input;    // [S, H]; the input's gradient takes its place
    void *low_rank_in, *low_rank_down, *low_rank_gradient;
  } moe;

 private:
  void borrow(Borrowed which);
  struct Loan {
    Borrowed which;
    void** pointer;
    std::uint64_t offset;
  };
  Arena& arena_;
  std::vector<Loan> loans_;
};

/// Shared by all parts of the executor. `dropout` is 0 in evaluation.
struct StepContext {
  Stream stream;
  GemmEngine* gemm = nullptr;
  FlashAttention* flash = nullptr;  // CUDA only
  const NumericalPlan* plan = nullptr;
  Workspace* work = nullptr;
  DType dtype = DType::f32;
  float dropout = 0;
  std::int64_t step = 0;
  /// Elements from row to row of the residual stream's gradients: behind their columns s B^T dy of
  /// the sites that end there finds room.
  std::int64_t gradient_stride = 0;
};

/// Pointer `elements` further on in a buffer of `dtype`.
[[nodiscard]] inline void* advance(void* data, DType dtype, std::int64_t elements) {
  return static_cast<std::byte*>(data) + static_cast<std::int64_t>(bytes_of(dtype)) * elements;
}
[[nodiscard]] inline const void* advance(const void* data, DType dtype, std::int64_t elements) {
  return static_cast<const std::byte*>(data) +
         static_cast<std::int64_t>(bytes_of(dtype)) * elements;
}

}  // namespace poros
