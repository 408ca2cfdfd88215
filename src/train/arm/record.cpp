// SPDX-License-Identifier: Apache-2.0
#include "train/arm/record.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/clock.hpp"
#include "base/median.hpp"
#include "train/memory_probe.hpp"

namespace poros {
namespace {

/// The sign of a NaN means nothing, so it isn't shown.
std::string number_text(float value) {
  return std::isnan(value) ? "nan" : fmt::format("{}", value);
}

}  // namespace

PassRecord begin_record(const CellRequest& request) {
  PassRecord record;
  record.purpose = request.purpose;
  record.cell_key = request.cell_key;
  record.method = request.cell.method;
  record.pass = request.pass;
  record.attempt = request.attempt;
  record.started_at = utc_now();
  return record;
}

void add_step(PassRecord& record, const StepReport& report, const StepMemory& memory) {
  StepSeries& steps = record.steps;
  steps.loss.push_back(static_cast<double>(report.loss));
  steps.grad_norm.push_back(static_cast<double>(report.grad_norm));
  steps.learning_rate.push_back(report.learning_rate);
  if (record.purpose == "timed") steps.s_per_step.push_back(report.seconds);
  steps.allocated_mb.push_back(memory.allocated_mb);
  steps.reserved_mb.push_back(memory.reserved_mb);
  // One missing value would make the column unequal, so a machine without /proc has no column.
  if (const auto rss = host_rss_mb()) steps.host_rss_mb.push_back(*rss);
  steps.supervised_tokens.push_back(static_cast<double>(report.supervised_tokens));
}

std::optional<double> median_after(const std::vector<double>& values, std::int64_t warmup) {
  if (warmup < 0 || static_cast<std::int64_t>(values.size()) <= warmup) return std::nullopt;
  std::vector<double> rest(values.begin() + warmup, values.end());
  std::sort(rest.begin(), rest.end());
  return median_of_sorted(rest);
}

void record_end(PassRecord& record, const TrainSummary& summary, std::int64_t steps) {
  switch (summary.end) {
    case TrainEnd::finished:
      return;
    case TrainEnd::stopped:
      record.status = "error";
      record.reason = "drained";
      record.error_message =
          fmt::format("stopped on request after step {} of {}", summary.steps, steps);
      return;
    case TrainEnd::diverged:
      record.status = "error";
      record.reason = "diverged";
      record.error_message = fmt::format(
          "step {} of {}: loss {}, gradient norm {}: not finite; the update was not made",
          summary.diverged->step, steps, number_text(summary.diverged->loss),
          number_text(summary.diverged->grad_norm));
      return;
  }
}

}  // namespace poros
