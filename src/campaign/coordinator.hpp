// SPDX-License-Identifier: Apache-2.0
// Rank 0's part of a campaign over several ranks: hands out comparison groups and writes the
// journal for all. Requests and replies are JSON objects:
//   {"ask": "hello", "placement"}  -> {"identity", "epoch", "first_seq", "left"}
//   {"ask": "next"}    -> {"group", "receipts": [lines]} | {"wait": true} | {"end": true}
//   {"ask": "receipt", "receipt"}  -> {"line", "left"}
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
#include "campaign/ledger.hpp"
#include "campaign/open_campaign.hpp"
#include "campaign/placement.hpp"
#include "campaign/plan.hpp"
#include "receipts/journal.hpp"

namespace poros {

class Coordinator {
 public:
  struct Start {
    CampaignIdentity identity;
    std::int64_t passes_left = 0;
    std::vector<bool> unfinished;  // by group: has something to do
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
  /// GPU types that no rank has, of groups that nobody could take.
  [[nodiscard]] std::vector<std::string> unmatched() const;

 private:
  struct Rank {
    std::optional<Placement> placement;
    bool left = false;
  };

  Json answer(int rank, const Json& request);
  Json hello(int rank, const Json& request);
  Json next(const Placement& placement);
  Json record(const Json& request);
  void fail_with(const Error& error);

  const CampaignPlan& plan_;
  JournalWriter& journal_;
  Start start_;
  std::int64_t first_seq_ = 0;
  mutable std::mutex mutex_;
  std::vector<Rank> ranks_;
  std::vector<std::size_t> waiting_;                       // groups, longest first
  std::map<std::string, std::vector<std::string>> lines_;  // receipts by key
  std::optional<int> lock_holder_;
  std::optional<Error> failure_;
  bool stopping_ = false;
};

/// Relative time of a group: tokens it trains times the parameters that its model is said to have
/// (1 where the spec does not say). Only an order, no estimate of seconds.
[[nodiscard]] double relative_cost(const CampaignPlan& plan, const ComparisonGroup& group);

}  // namespace poros
