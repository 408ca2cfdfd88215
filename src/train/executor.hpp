// SPDX-License-Identifier: Apache-2.0
// The block executor: forward and backward of one optimizer step by hand-written functions, block
// by block, over whatever residency the memory plan names. It knows nothing of optimizers, files or
// events; src/train/trainer drives it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/device.hpp"
#include "model/adapter.hpp"
#include "model/base_store.hpp"
#include "plan/memory_plan.hpp"
#include "plan/numerical_plan.hpp"

namespace poros {

/// The rows of one optimizer step as they stand in a token file: micro_batches x batch_size rows of
/// seq_len tokens. Row r belongs to micro-batch r / batch_size. The spans must stay valid during
/// the call.
struct StepBatch {
  std::span<const std::uint32_t> ids;   // [micro_batches * batch_size, seq_len]
  std::span<const std::uint8_t> flags;  // same shape; bits of TokenFile
};

/// What a step was; the loss itself is read with Executor::loss (it may still be on its way).
struct StepOutcome {
  std::int64_t supervised_tokens = 0;  // 0: nothing to learn, gradients are zero, skip the update
  std::int64_t tokens = 0;             // without padding
};

/// One tensor of the flat buffers, row-major at `offset` elements.
struct ParameterView {
  std::string name;  // "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
  std::int64_t rows = 0, cols = 0;
  std::int64_t offset = 0;  // [elements]
};

/// Loss of one row of tokens.
struct RowLoss {
  double sum = 0;           // over its supervised tokens [nat]
  std::int64_t tokens = 0;  // supervised
};

/// Counters since construction.
struct ExecutorCounters {
  std::uint64_t bytes_copied = 0;  // base bytes host -> device, after the load
  std::uint64_t block_copies = 0;
  double copy_stall_s = 0;        // time in which the compute waited for a block
  double load_s = 0;              // reading the base and filling the arena
  std::uint64_t arena_bytes = 0;  // device memory held (equals the memory plan)
  std::uint64_t pinned_bytes = 0;
  std::uint64_t host_bytes = 0;
};

/// For tests of the residency: faults that a race or a stale pointer would turn into wrong bits.
struct ExecutorDebug {
  bool poison_freed_slots = false;  // fill a freed slot with 0xFF (NaN in absmax and norms)
  double delay_copies_s = 0;        // the copy engine stands still before each block
  double delay_compute_s = 0;       // the compute stands still before each layer
  bool refuse_pinning = false;      // as if the system didn't page-lock the streamed base
};

class PhaseClock;

class Executor {
 public:
  /// Reads the base, fills the arena and the flat buffers (moments and gradients zero). After it
  /// nothing is allocated.
  /// @param base outlives the executor
  /// @param adapter its places must be those of the memory plan
  Executor(const BaseStore& base, const NumericalPlan& numerical, const MemoryPlan& memory,
           const Adapter& adapter, Stream stream, const ExecutorDebug& debug = {});
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Forward and backward of all micro-batches. Gradients of the mean loss over the whole step's
  /// supervised tokens replace what was in gradient().
  /// @param step index of the optimizer step: keys dropout
  /// @throws Error(Fault::input) when the batch has not the plan's shape
  StepOutcome run_step(const StepBatch& batch, std::int64_t step);

  /// Mean loss over the last step's supervised tokens [nat], fp32; 0 for a step without any. Waits
  /// for the stream.
  [[nodiscard]] float loss();

  /// Loss without gradients or dropout of whole rows, in batches of the plan's sweeps.
  /// @param ids, flags [rows, seq_len] with the plan's seq_len; any number of rows
  [[nodiscard]] std::vector<RowLoss> evaluate(std::span<const std::uint32_t> ids,
                                              std::span<const std::uint8_t> flags);

  /// Logits [tokens, vocab] of one document of at most seq_len tokens, no dropout; with last_only
  /// those of its last token alone, [vocab].
  [[nodiscard]] std::vector<float> logits(std::span<const std::uint32_t> ids,
                                          bool last_only = false);

  /// Flat fp32 buffers in device memory, all of one layout (views()). Elements between views are
  /// padding: zero in each of them and to be left zero (AdamW over the whole buffer leaves them
  /// so).
  [[nodiscard]] std::int64_t flat_elements() const;
  [[nodiscard]] std::int64_t trainable_parameters() const;
  [[nodiscard]] float* master();
  [[nodiscard]] float* gradient();
  [[nodiscard]] float* exp_avg();
  [[nodiscard]] float* exp_avg_sq();
  /// A and B of each place, in the order of Adapter::places; names as in PEFT's files.
  [[nodiscard]] const std::vector<ParameterView>& views() const;

  /// The master weights as an adapter (places and config as given to the constructor).
  [[nodiscard]] Adapter adapter() const;

  /// Steps mark their phases on `clock`, which outlives this; null: they don't.
  void time_phases(PhaseClock* clock);

  [[nodiscard]] Stream stream() const;
  [[nodiscard]] ExecutorCounters counters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Sets the CPU threads of LibTorch, MKL and the kernels as the plan says, and pins MKL's code path
/// (MKL_CBWR), which must happen before the first matrix product of the process: to be called first
/// thing in a process that makes an Executor; the constructor calls it too.
void prepare_cpu_math(const DeviceModel& device);

}  // namespace poros
