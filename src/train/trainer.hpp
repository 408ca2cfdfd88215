// SPDX-License-Identifier: Apache-2.0
// The training loop: rows of a token file through the executor, then AdamW under a schedule. It
// reports each step to its caller and knows nothing of records, pipes or signals.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "spec/spec.hpp"
#include "train/data.hpp"
#include "train/executor.hpp"
#include "train/optimizer.hpp"

namespace poros {

/// One optimizer step that was done.
struct StepReport {
  std::int64_t step = 0;     // from 1
  float loss = 0;            // mean over the step's supervised tokens [nat]; 0 without any
  float grad_norm = 0;       // global 2-norm before clipping; 0 without supervised tokens
  double learning_rate = 0;  // used in this step
  double seconds = 0;        // device-synchronised wall time from the step's rows to its update
  std::int64_t supervised_tokens = 0;
  std::int64_t tokens = 0;   // without padding
  std::int64_t updates = 0;  // the optimizer's, this step's included
};

/// Where a loop begins; weights and moments of that point stand in the executor's buffers.
struct TrainStart {
  std::int64_t steps = 0;    // done before
  std::int64_t updates = 0;  // made in them: fewer where steps had nothing to learn
};

/// How the loop ended.
enum class TrainEnd {
  finished,  // all steps done
  stopped,   // the caller asked to stop, at a step's boundary
  diverged,  // a loss or gradient norm was not finite; that step's update was not made
};

struct TrainSummary {
  TrainEnd end = TrainEnd::finished;
  std::int64_t steps = 0;              // done, those before the start included
  std::int64_t updates = 0;            // the optimizer's
  std::optional<StepReport> diverged;  // the step that was not finite
};

struct TrainHooks {
  /// Before each step, with its number from 1; true ends the loop. Optional.
  std::function<bool(std::int64_t step)> should_stop;
  /// After each step, outside its time. Optional.
  std::function<void(const StepReport&)> after_step;
};

/// @param training  steps, schedule, clipping, weight decay; its shape must be the executor's
/// @param max_steps end after that many steps; the schedule still spans training.steps
/// @param start     goes on there, to the same bits as a loop that was not interrupted
/// A step without supervised tokens makes no update, but uses up its place in the schedule.
/// @throws Error(Fault::input) where rows and spec don't fit
TrainSummary train(Executor& executor, StepRows& rows, const TrainingSpec& training,
                   std::optional<std::int64_t> max_steps, const TrainHooks& hooks,
                   const TrainStart& start = {});

}  // namespace poros
