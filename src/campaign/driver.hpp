// SPDX-License-Identifier: Apache-2.0
// The local driver: one process that works through a plan and writes down each result before it
// goes on. All state that matters is in the journal; a Driver can be killed at any moment.
#pragma once

#include <exception>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "campaign/arms.hpp"
#include "campaign/artifacts.hpp"
#include "campaign/attempt.hpp"
#include "campaign/campaign.hpp"
#include "campaign/ledger.hpp"
#include "campaign/live.hpp"
#include "campaign/open_campaign.hpp"
#include "campaign/placement.hpp"
#include "campaign/plan.hpp"
#include "campaign/rank_session.hpp"
#include "campaign/signals.hpp"
#include "receipts/journal.hpp"

namespace poros {

/// This process among the ranks of a job.
struct Ranks {
  RankSession* session = nullptr;  // null: alone
  Placement placement;
};

/// What a run left, in the plan's order.
struct CampaignResult {
  std::vector<RunArtifact> artifacts;  // of finished cells
  std::vector<Json> parity;            // parity records
  bool stopped = false;
  std::vector<std::string> unmatched;  // GPU types that no rank has
  std::int64_t passes_total = 0, passes_left = 0;
};

class Driver {
 public:
  Driver(const CampaignOptions& options, const CampaignPlan& plan, const CampaignFolder& folder,
         const InstallPaths& paths, const StopSignals& signals, const Ranks& ranks = {});

  /// Takes the journal, works through the plan, releases the journal.
  /// @throws Error; what was finished before is on disk
  CampaignResult run();

 private:
  struct GroupState {
    const ComparisonGroup& group;
    std::optional<GroupInputs> inputs;
    std::map<std::string, std::string> input_failures;  // why there are none, by cell key
    bool has_news = false;                              // a pass was recorded in this run
  };

  class InputLock;

  void make_context(std::int64_t epoch);
  void count_passes();
  void run_groups(CampaignResult& result);
  /// Rank 0 of several, and the others (driver_ranks.cpp).
  void lead(CampaignResult& result);
  void follow();
  void work();
  void collect(CampaignResult& result) const;
  [[nodiscard]] bool stopping() const;
  void run_group(const ComparisonGroup& group, CampaignResult& result);
  [[nodiscard]] bool prepare(GroupState& state);
  void refuse_mixed_builds(const ComparisonGroup& group) const;

  [[nodiscard]] bool needs_run(const PlannedCell& cell, std::int64_t pass) const;
  [[nodiscard]] bool is_settled(const AttemptEntry& entry) const;
  [[nodiscard]] bool wants_parity(const ComparisonGroup& group) const;
  [[nodiscard]] std::int64_t count_left(const ComparisonGroup& group) const;

  /// Runs a pass until an attempt counts, is stopped, or was lost too often.
  /// @returns nothing when the run is to stop
  std::optional<RecordedPass> run_pass(GroupState& state, const PlannedCell& cell,
                                       const std::string& purpose, std::int64_t pass,
                                       const std::optional<CellRequest::Dump>& dump = {});
  RecordedPass run_one_attempt(GroupState& state, const PlannedCell& cell,
                               const std::string& purpose, std::int64_t pass,
                               const std::optional<CellRequest::Dump>& dump);
  [[nodiscard]] std::int64_t next_attempt(const PlannedCell& cell, const std::string& purpose,
                                          std::int64_t pass) const;
  RecordedPass record_pass(const PlannedCell& cell, const PassRecord& record);
  [[nodiscard]] RecordedPass load_pass(const AttemptEntry& entry) const;

  std::vector<RunArtifact> finish_group(GroupState& state);
  [[nodiscard]] std::optional<std::vector<RunArtifact>> load_finished(
      const ComparisonGroup& group) const;
  void record_artifact(const PlannedCell& cell, const RunArtifact& artifact);
  std::optional<Json> run_parity(GroupState& state, const std::vector<RunArtifact>& artifacts);
  std::optional<Json> measure_parity(GroupState& state, const PlannedCell& a, const PlannedCell& b);

  void append(Receipt receipt);
  void heartbeat();
  [[nodiscard]] CellHooks hooks();

  const CampaignOptions& options_;
  const CampaignPlan& plan_;
  const CampaignFolder& folder_;
  const InstallPaths& paths_;
  const StopSignals& signals_;
  RankSession* session_;  // null: alone
  Placement placement_;
  std::string rank_name_;
  std::map<std::string, ArmProgram> arms_;  // by method
  Redactor redactor_;
  OomCounter oom_;
  LiveView live_;
  std::optional<JournalWriter> journal_;
  std::exception_ptr journal_failure_;
  double heartbeat_s_ = 0;
  CampaignIdentity identity_;
  ArtifactContext artifact_context_;
  std::optional<AttemptContext> attempt_context_;
  Ledger ledger_;
  std::int64_t passes_left_ = 0;                        // of all ranks
  std::int64_t passes_total_ = 0, left_elsewhere_ = 0;  // the latter: in the other groups
  std::int64_t first_seq_ = 0;                          // receipts from here on are of this run
};

}  // namespace poros
