// SPDX-License-Identifier: Apache-2.0
// One rank's conversation with rank 0, on a thread of its own: the rank itself may be waiting for a
// cell. Every wait ends: each side sends a sign of life every few seconds and gives the other up
// when it hears none.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/json.hpp"
#include "campaign/coordinator.hpp"
#include "campaign/rank_link.hpp"

namespace poros {

inline constexpr double kRankBeat_s = 5, kRankSilent_s = 60;

/// Thrown by ask() when rank 0 has ended the run: it has said why.
struct RunEnded {};

class RankSession {
 public:
  /// @param link must outlive the session, and is used by nobody else meanwhile
  explicit RankSession(RankLink& link, double silent_s = kRankSilent_s);
  /// Rank 0: tells the others that they may go, or ends the job where one was lost. Others: wait
  /// for that.
  ~RankSession();
  RankSession(const RankSession&) = delete;
  RankSession& operator=(const RankSession&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

  /// Rank 0: answers the ranks from now on, until stop_serving().
  void serve(Coordinator& coordinator);
  void stop_serving();

  /// Asks rank 0 (which may be this one). @throws Error of the reply, Error(Fault::run) when rank 0
  /// is silent, RunEnded
  Json ask(const Json& request);

  /// True when all ranks are to end what they do.
  [[nodiscard]] bool stop_requested() const { return stop_; }

 private:
  void talk();
  bool receive_all();
  void receive_one(const RankMessage& message);
  void send_beats(double now_s);
  void watch(double now_s);

  RankLink& link_;
  const int rank_, size_;
  const double silent_s_;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  Coordinator* coordinator_ = nullptr;
  std::vector<std::string> outbox_;
  std::optional<std::string> reply_;
  bool ended_ = false, silent_ = false, closing_ = false, told_stop_ = false, lost_rank_ = false;
  std::vector<double> heard_s_;  // of each rank (rank 0), of rank 0 (others)
  double beat_s_ = 0;
  std::thread thread_;
};

}  // namespace poros
