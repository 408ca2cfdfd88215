// SPDX-License-Identifier: Apache-2.0
// The numerical plan: everything that decides the bits of a training step. It is a function of the
// spec, the shapes and the device model alone; never of free memory, slot count or residency. So
// `resident` and `poros` have the same plan, and equal plans on equal inputs give equal bits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "model/architecture.hpp"
#include "spec/spec.hpp"

namespace poros {

/// Type of activations and of the operands of matrix products. Adapters, moments and gradient
/// accumulators are fp32 in either.
enum class ComputeType { fp32, bf16 };

[[nodiscard]] const char* name_of(ComputeType type);
[[nodiscard]] std::int64_t bytes_of(ComputeType type);

/// blocked: own row-blocked path (kernels + GEMM), linear in memory, covers everything.
/// flash: at::_flash_attention_forward/_backward; CUDA, bf16, no soft-cap.
enum class AttentionPath { blocked, flash };

/// What of the machine the bits depend on.
struct DeviceModel {
  bool cuda = false;
  std::string name = "cpu";     // GPU model
  std::string instruction_set;  // CPU only: "avx512", "avx2", ...
  int threads = 1;              // CPU only
  int multiprocessors = 0;      // CUDA only; flash attention's sums depend on it
};

/// The CPU of this process. @param threads at least 1
[[nodiscard]] DeviceModel cpu_device_model(int threads);

struct NumericalPlan {
  DeviceModel device;
  ComputeType compute = ComputeType::fp32;
  std::string model_type;
  std::int64_t layers = 0, hidden = 0, vocab = 0;

  std::int64_t seq_len = 0;        // tokens of a row of the token file
  std::int64_t batch_size = 0;     // rows of a micro-batch
  std::int64_t micro_batches = 0;  // of an optimizer step (gradient_accumulation_steps)
  bool block_major = true;
  /// A sweep is a run of that many whole micro-batches (the last of a step may be shorter).
  std::int64_t micro_batches_per_sweep = 0;
  std::int64_t sweeps = 0;  // of an optimizer step
  /// Rows (tokens) a sweep's matrices can have, ascending: its tokens without padding are laid
  /// one after the other and padded to the next of these. The last is the capacity.
  std::vector<std::int64_t> row_counts;

  std::int64_t vocabulary_chunk = 0;     // rows of the head that are multiplied at a time
  std::int64_t gradient_group_rows = 0;  // tokens of one partial sum of dA and dB
  std::int64_t query_block = 0;          // queries of one tile of the blocked attention
  std::vector<AttentionPath> attention;  // one a layer
  /// CUDA: flash attention is launched for so many documents a sweep (twice, four times as many
  /// where there are more); 0 on the CPU.
  std::int64_t document_slots = 0;
  std::int64_t gemm_workspace_bytes = 0;  // CUDA: enters cublasLt's choice of algorithms
  std::int64_t alignment = 256;           // bytes; of every operand
  /// Each expert's rows are padded with zeros to a multiple of this: few row counts, so that
  /// cublasLt's choices are kept. 0: the model has no experts.
  std::int64_t expert_row_granule = 0;

  float dropout = 0;  // of LoRA's inputs
  std::uint64_t seed = 0;

  /// Most rows a sweep can have.
  [[nodiscard]] std::int64_t row_capacity() const { return row_counts.back(); }
  /// The smallest of row_counts that holds `tokens`. @throws Error(Fault::run) above the capacity.
  [[nodiscard]] std::int64_t padded_rows(std::int64_t tokens) const;
};

/// @throws Error(Fault::input) where a setting does not fit the model or the device.
[[nodiscard]] NumericalPlan make_numerical_plan(const Architecture& architecture,
                                                const TrainingSpec& training, const LoraSpec& lora,
                                                const PorosSpec& poros, const DeviceModel& device);

[[nodiscard]] Json to_json(const NumericalPlan& plan);

/// sha256 of to_json's text: equal for the arms `poros` and `resident` of one group.
[[nodiscard]] std::string plan_hash(const NumericalPlan& plan);

}  // namespace poros
