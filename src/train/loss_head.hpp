// SPDX-License-Identifier: Apache-2.0
// Final norm, output head and cross-entropy. The head is read once, in chunks of the vocabulary, so
// that logits never exist whole: an online softmax keeps maximum and sum of each row, and the
// gradient of the head's input as an fp32 sum that is rescaled whenever the maximum moves.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cross_entropy.hpp"
#include "kernels/rms_norm.hpp"
#include "model/base_store.hpp"
#include "train/arena.hpp"
#include "train/head_stream.hpp"
#include "train/host_rows.hpp"
#include "train/workspace.hpp"

namespace poros {

/// Targets of a sweep; device pointers, [rows] each.
struct HeadTargets {
  const std::int32_t* targets = nullptr;          // -1: not supervised
  const std::int32_t* target_ids = nullptr;       // the same with 0 for -1
  const std::int32_t* host_target_ids = nullptr;  // a copy in host memory
};

class LossHead {
 public:
  /// @param base outlives this
  /// @param rows the head's rows, for gathering those of the targets; outlives this
  LossHead(const StepContext& context, const BaseStore& base, const HostRows& rows,
           const Arena& arena);

  /// On a GPU: begins to copy the head's first chunks. A pass over the head has to follow.
  void prefetch();

  /// Adds the sweep's loss to the total and writes row_loss().
  /// @param x  output of the last layer [rows, hidden]
  /// @param dx its gradient of sum(loss) * inv_supervised, context's gradient_stride; null: not
  ///           wanted
  /// @param first_of_step the total starts at 0
  void loss(std::int64_t rows, const HeadTargets& targets, const void* x, void* dx,
            float inv_supervised, bool first_of_step);

  /// Soft-capped logits [end - begin, vocab] of the tokens begin .. end - 1, in host memory.
  [[nodiscard]] std::vector<float> logits(std::int64_t rows, std::int64_t begin, std::int64_t end,
                                          const void* x);

  /// Sum of the losses since first_of_step, one double in device memory.
  [[nodiscard]] const double* total() const { return total_; }
  /// Loss of each row of the last sweep, device memory.
  [[nodiscard]] const float* row_loss() const { return row_loss_; }

 private:
  void normalise(std::int64_t rows, const void* x);
  /// Rows first .. first + classes - 1 of the head in compute dtype, into weight_.
  void load_chunk(std::int64_t first, std::int64_t classes);
  /// The chunk's work is queued.
  void release_chunk();
  void multiply_chunk(std::int64_t rows, std::int64_t classes);
  void differentiate(std::int64_t rows, const HeadTargets& targets, const void* x, void* dx,
                     float inv_supervised);

  const StepContext& context_;
  const Architecture& architecture_;
  const HostRows& rows_;
  EndTensor head_;
  DType head_dtype_;
  std::unique_ptr<HeadStream> stream_;  // null on the CPU: the head is read where it lies
  NormWeight norm_kind_;
  // Arena buffers, see plan/step_buffers.cpp.
  float* norm_weight_;
  void* norm_;
  float* norm_rstd_;
  void* chunk_;         // room for a chunk in compute dtype
  const void* weight_;  // the present chunk
  float* gradient_sum_;
  void* target_rows_;
  CrossEntropyState state_;
  float *rescale_, *row_loss_;
  double* total_;
};

/// DType of a tensor of the ends. @throws Error(Fault::run) for nf4
[[nodiscard]] DType storage_dtype(const EndTensor& tensor);

}  // namespace poros
