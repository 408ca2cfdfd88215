// SPDX-License-Identifier: Apache-2.0
// What ends a run before its cells are done: its time, and failures.
#pragma once

#include <cstdint>
#include <optional>

#include "campaign/campaign.hpp"
#include "receipts/receipt.hpp"

namespace poros {

/// Of one process. Failures are counted where the journal is written.
class RunLimits {
 public:
  /// The time begins now.
  explicit RunLimits(const CampaignOptions& options);

  /// Whether a pass that is expected to take so long may begin: before --max-hours have passed and
  /// before the batch job's warning. @param expected_s nothing: not known
  [[nodiscard]] bool allows(std::optional<double> expected_s) const;

 private:
  std::optional<double> deadline_s_;  // monotonic
};

/// Counts the failed cells of a run against --fail-fast and --max-failures.
class FailureLimit {
 public:
  explicit FailureLimit(std::optional<std::int64_t> most) : most_(most) {}
  void count(const Receipt& receipt);
  [[nodiscard]] bool reached() const { return most_ && failures_ >= *most_; }
  [[nodiscard]] std::int64_t failures() const { return failures_; }

 private:
  std::optional<std::int64_t> most_;
  std::int64_t failures_ = 0;
};

}  // namespace poros
