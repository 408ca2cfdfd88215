// SPDX-License-Identifier: Apache-2.0
// The driver: one process that works through a plan and writes down each result before it goes on.
// All state that matters is in the journal; a Driver can be killed at any moment.
#pragma once

#include <exception>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "campaign/artifacts.hpp"
#include "campaign/attempt.hpp"
#include "campaign/campaign.hpp"
#include "campaign/limits.hpp"
#include "campaign/live.hpp"
#include "campaign/open_campaign.hpp"
#include "campaign/placement.hpp"
#include "campaign/plan.hpp"
#include "campaign/progress.hpp"
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
  bool stopped = false;                // by a signal
  bool out_of_time = false;            // passes are left that would not have ended in time
  std::int64_t failed_cells = 0;       // so many that the run ended; 0: it did not
  std::vector<std::string> unmatched;  // GPU types that no rank has, or whose GPUs are set aside
  std::int64_t passes_total = 0, passes_left = 0;
};

class Driver {
 public:
  Driver(const CampaignOptions& options, const CampaignPlan& plan, const CampaignFolder& folder,
         const InstallPaths& paths, const StopSignals& signals, const Ranks& ranks = {});

  /// The journal of this run: the campaign's, or its shard's.
  [[nodiscard]] std::filesystem::path journal_path() const;

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
  class HostTurn;

  void make_context(std::int64_t epoch);
  void read_receipts();
  void run_groups(CampaignResult& result);
  /// Rank 0 of several, and the others (driver_ranks.cpp).
  void lead(CampaignResult& result);
  void follow();
  void work();
  void collect(CampaignResult& result) const;
  [[nodiscard]] bool stopping() const;
  void run_group(const ComparisonGroup& group, CampaignResult& result);
  void announce_round(const ComparisonGroup& group, std::int64_t pass);
  [[nodiscard]] bool prepare(GroupState& state);
  void refuse_mixed_builds(const ComparisonGroup& group) const;
  [[nodiscard]] bool has_time_for(const PlannedCell& cell, const std::string& purpose);

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
  [[nodiscard]] std::optional<Json> load_parity(const ComparisonGroup& group) const;
  std::optional<Json> run_parity(GroupState& state, const std::vector<RunArtifact>& artifacts);
  std::optional<Json> measure_parity(GroupState& state, const PlannedCell& a, const PlannedCell& b);

  [[nodiscard]] std::string process_tag() const;
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
  Progress progress_;
  RunLimits limits_;
  FailureLimit failures_;
  Redactor redactor_;
  OomCounter oom_;
  LiveView live_;
  std::optional<JournalWriter> journal_;
  std::exception_ptr journal_failure_;
  double heartbeat_s_ = 0;
  CampaignIdentity identity_;
  ArtifactContext artifact_context_;
  std::optional<AttemptContext> attempt_context_;
  std::int64_t passes_left_ = 0;                        // of all ranks
  std::int64_t passes_total_ = 0, left_elsewhere_ = 0;  // the latter: in the other groups
  std::vector<Receipt> others_;  // of the campaign's other journals, as they were at the start
  bool out_of_time_ = false;
  bool set_aside_ = false;  // this rank's GPU fails too often
};

}  // namespace poros
