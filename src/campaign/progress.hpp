// SPDX-License-Identifier: Apache-2.0
// What of a plan is done, and what this run has still to do.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "campaign/arms.hpp"
#include "campaign/ledger.hpp"
#include "campaign/plan.hpp"
#include "campaign/selection.hpp"

namespace poros {

struct ProgressOptions {
  bool retry = false;  // attempts of earlier runs that failed don't count
  /// More passes than the spec asks for, until the spread over a cell's passes, (slowest - fastest)
  /// / median of their s_per_step, is at most this in every cell of the group.
  std::optional<double> until_stable;
  std::int64_t max_passes = 10;  // with until_stable
};

class Progress {
 public:
  Progress(const CampaignPlan& plan, const InstallPaths& paths, Selection selection,
           const ProgressOptions& options);

  Ledger ledger;
  std::int64_t first_seq = 0;  // receipts from here on are of this run

  [[nodiscard]] const Selection& selection() const { return selection_; }
  [[nodiscard]] const ArmProgram& arm(const PlannedCell& cell) const;
  /// Why a cell can't be run here: its arm is missing, or it needs more host memory than there is.
  [[nodiscard]] const std::optional<Skip>& skip(const PlannedCell& cell) const;
  [[nodiscard]] bool is_selected(const PlannedCell& cell) const;

  /// An attempt that is not made again.
  [[nodiscard]] bool is_settled(const AttemptEntry& entry) const;
  [[nodiscard]] bool needs_run(const PlannedCell& cell, std::int64_t pass) const;
  [[nodiscard]] bool wants_parity(const ComparisonGroup& group) const;
  /// Passes of each cell of the group, as far as is known by now: what the spec asks for, rounds
  /// that were begun beyond it, and one more while a complete group is not stable.
  [[nodiscard]] std::int64_t passes_of(const ComparisonGroup& group) const;
  /// Passes of the group that are left.
  [[nodiscard]] std::int64_t count_left(const ComparisonGroup& group) const;
  /// All passes of the selected cells that can run.
  [[nodiscard]] std::int64_t count_all() const;
  /// The GPU on which an unfinished group has begun; empty: none, or not known.
  [[nodiscard]] std::string begun_on(const ComparisonGroup& group) const;
  /// An unfinished group goes on on the GPU that it began on, else from its first pass: marks what
  /// was measured on another. @returns how many passes are to run again for it
  std::int64_t supersede_elsewhere(const ComparisonGroup& group, const std::string& gpu_uuid);

 private:
  [[nodiscard]] std::int64_t count_left(const ComparisonGroup& group, std::int64_t passes) const;
  [[nodiscard]] bool has_begun(const ComparisonGroup& group, std::int64_t pass) const;
  [[nodiscard]] bool is_stable(const ComparisonGroup& group) const;

  const CampaignPlan& plan_;
  Selection selection_;
  ProgressOptions options_;
  std::map<std::string, ArmProgram> arms_;                          // by method
  mutable std::map<std::string, std::optional<Skip>> host_memory_;  // by cell key
};

}  // namespace poros
