// SPDX-License-Identifier: Apache-2.0
// Rank 0's part of a campaign over several ranks: hands out comparison groups and writes the
// journal for all. Requests and replies are JSON objects:
//   {"ask": "hello", "placement"}  -> {"identity", "epoch", "first_seq", "left", "set_aside"}
//   {"ask": "next", "returned"} -> {"group", "receipts": [lines], "others": [lines]}
//                        | {"wait": true} | {"end": true}
//                        returned: the rank gives its last group back (its GPU is set aside)
//   {"ask": "receipt", "receipt"}  -> {"line", "left", "set_aside"}
//   {"ask": "admit", "bytes", "exclusive"} -> {"admitted": true} | {"wait": true}
//   {"ask": "release"} -> {}     the admitted pass has ended
//   {"ask": "more", "passes"} -> {}  so many passes run again: the group began on another GPU
//   {"ask": "late"}    -> {}     a pass was not begun for want of time
//   {"ask": "lock"}    -> {"locked": true} | {"wait": true}     making inputs: one rank at a time
//   {"ask": "unlock"}  -> {}
//   {"ask": "stop"}    -> {}     a signal arrived: all ranks drain
//   {"ask": "failed", "fault", "message"} -> {}     all ranks drain, and the run fails with it
//   {"ask": "leave"}   -> {}     the rank has no more to do
// A reply {"error": text, "fault": number} stands for any of them.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "campaign/admission.hpp"
#include "campaign/gpu_faults.hpp"
#include "campaign/ledger.hpp"
#include "campaign/limits.hpp"
#include "campaign/open_campaign.hpp"
#include "campaign/placement.hpp"
#include "campaign/plan.hpp"
#include "receipts/journal.hpp"

namespace poros {

class Coordinator {
 public:
  struct Group {
    bool selected = true;
    bool unfinished = true;  // has something to do
    std::string begun_on;    // UUID of the GPU that has begun it; empty: none
  };
  struct Start {
    CampaignIdentity identity;
    std::int64_t passes_left = 0;
    std::vector<Group> groups;    // as in the plan
    std::vector<Receipt> others;  // of the campaign's other journals
    std::optional<std::int64_t> max_failures;
    bool forget_faults = false;  // GPUs that failed in earlier runs are tried again
  };

  /// `journal` is used by nobody else while the Coordinator lives.
  Coordinator(const CampaignPlan& plan, JournalWriter& journal, Start start, int ranks);

  /// Answers a rank. From any thread; never throws.
  [[nodiscard]] Json handle(int rank, const Json& request);

  /// To be called often: renews the lease.
  void heartbeat();

  /// A rank that is not heard of any more: what it had is lost, the run ends.
  void lose(int rank, const std::string& why);

  [[nodiscard]] bool stopping() const;
  [[nodiscard]] bool all_left() const;
  [[nodiscard]] bool has_left(int rank) const;
  /// All receipts, those of this run too.
  [[nodiscard]] Ledger ledger() const;
  /// The first failure of any rank.
  [[nodiscard]] std::optional<Error> failure() const;
  /// So many cells have failed that the run ends; 0: it does not.
  [[nodiscard]] std::int64_t failed_cells() const;
  [[nodiscard]] bool out_of_time() const;
  /// GPU types that no rank has (or whose ranks are set aside), of groups that nobody took.
  [[nodiscard]] std::vector<std::string> unmatched() const;

 private:
  struct Rank {
    std::optional<Placement> placement;
    std::optional<std::size_t> group;  // that it works on
    bool left = false;
  };

  Json answer(int rank, const Json& request);
  Json hello(int rank, const Json& request);
  Json next(int rank, bool returned);
  Json hand_out(Rank& rank, std::size_t group);
  Json admit(int rank, const Json& request);
  Json record(int rank, const Json& request);
  [[nodiscard]] bool is_set_aside(const Rank& rank) const;
  [[nodiscard]] bool belongs_elsewhere(std::size_t group, const Placement& placement) const;
  void fail_with(const Error& error);

  const CampaignPlan& plan_;
  JournalWriter& journal_;
  Start start_;
  std::int64_t first_seq_ = 0;
  mutable std::mutex mutex_;
  std::vector<Rank> ranks_;
  std::vector<std::size_t> waiting_;                                // groups, longest first
  std::map<std::string, std::vector<std::string>> lines_, others_;  // receipts by key
  GpuFaults faults_;
  FailureLimit failures_;
  Admission admission_;
  bool out_of_time_ = false;
  std::optional<int> lock_holder_;
  std::optional<Error> failure_;
  bool stopping_ = false;
};

/// The order in which groups are handed out. Predicted seconds of all their passes where each group
/// has a prediction; else a relative time: tokens that are trained times the parameters that the
/// model is said to have (1 where the spec does not say).
[[nodiscard]] std::vector<double> group_costs(const CampaignPlan& plan);

}  // namespace poros
