// SPDX-License-Identifier: Apache-2.0
#include "train/trainer.hpp"

#include <algorithm>
#include <cmath>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "train/schedule.hpp"

namespace poros {
namespace {

/// Runs step `index` (from 0). @returns false when it was not finite; then no update was made.
bool run_one(Executor& executor, StepRows& rows, AdamW& optimizer, std::int64_t index,
             StepReport& report) {
  const double begin = monotonic_s();
  const StepOutcome outcome = executor.run_step(rows.step(index), index);
  report.supervised_tokens = outcome.supervised_tokens;
  report.tokens = outcome.tokens;
  if (report.supervised_tokens > 0) {
    report.loss = executor.loss();
    const GradientNorm norm = optimizer.measure_norm();
    report.grad_norm = norm.norm;
    if (!std::isfinite(report.loss) || norm.finite == 0 || !std::isfinite(norm.norm)) return false;
    optimizer.update(report.learning_rate);
    ++report.updates;
  }
  synchronise(executor.stream());
  report.seconds = monotonic_s() - begin;
  return true;
}

}  // namespace

TrainSummary train(Executor& executor, StepRows& rows, const TrainingSpec& training,
                   std::optional<std::int64_t> max_steps, const TrainHooks& hooks,
                   const TrainStart& start) {
  if (rows.tokens().seq_len != training.seq_len) {
    fail(Fault::input, "the token file has rows of {} tokens, but seq_len is {}",
         rows.tokens().seq_len, training.seq_len);
  }
  const Schedule schedule(training.lr_scheduler, training.learning_rate, training.lr_warmup_steps,
                          training.steps);
  AdamW optimizer(flat_parameters(executor), {training.weight_decay, training.max_grad_norm},
                  executor.stream());
  if (start.updates > 0) optimizer.restore(start.updates);
  TrainSummary summary;
  summary.steps = start.steps;
  summary.updates = start.updates;
  const std::int64_t last = std::min(training.steps, max_steps.value_or(training.steps));
  for (std::int64_t index = start.steps; index < last; ++index) {
    if (hooks.should_stop && hooks.should_stop(index + 1)) {
      summary.end = TrainEnd::stopped;
      return summary;
    }
    StepReport report;
    report.step = index + 1;
    report.learning_rate = schedule.rate(index);
    report.updates = summary.updates;
    if (!run_one(executor, rows, optimizer, index, report)) {
      summary.end = TrainEnd::diverged;
      summary.diverged = report;
      return summary;
    }
    summary.steps = report.step;
    summary.updates = report.updates;
    if (hooks.after_step) hooks.after_step(report);
  }
  return summary;
}

}  // namespace poros
