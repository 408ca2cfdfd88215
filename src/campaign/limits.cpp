// SPDX-License-Identifier: Apache-2.0
#include "campaign/limits.hpp"

#include "base/clock.hpp"
#include "campaign/slurm_rank.hpp"

namespace poros {

RunLimits::RunLimits(const CampaignOptions& options) {
  if (options.max_hours) deadline_s_ = monotonic_s() + *options.max_hours * 3600;
}

bool RunLimits::allows(std::optional<double> expected_s) const {
  const double needed_s = expected_s.value_or(0);
  if (deadline_s_ && monotonic_s() + needed_s >= *deadline_s_) return false;
  const auto job_s = job_seconds_left();
  return !job_s || needed_s < *job_s;
}

void FailureLimit::count(const Receipt& receipt) {
  const auto text = [&](const char* name) {
    return json_find<std::string>(receipt.fields, name, "receipt").value_or("");
  };
  const std::string reason = text("reason");
  if (receipt.kind != "attempt" || text("purpose") != "timed" || text("status") != "error") return;
  if (reason != "lost" && reason != "drained") ++failures_;  // a failed pass ends its cell
}

}  // namespace poros
