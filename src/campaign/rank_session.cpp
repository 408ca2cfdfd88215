// SPDX-License-Identifier: Apache-2.0
#include "campaign/rank_session.hpp"

#include <algorithm>
#include <chrono>

#include <signal.h>

#include "base/clock.hpp"

namespace poros {
namespace {

constexpr const char* kBeat = R"({"beat":true})";
constexpr const char* kStop = R"({"stop":true})";
constexpr const char* kBye = R"({"bye":true})";
constexpr auto kPause = std::chrono::milliseconds(2);
constexpr auto kLastWords = std::chrono::milliseconds(500);

Json checked(Json reply) {
  if (reply.contains("error")) {
    throw Error(static_cast<Fault>(reply.at("fault").get<int>()),
                reply.at("error").get<std::string>());
  }
  return reply;
}

}  // namespace

RankSession::RankSession(RankLink& link, double silent_s)
    : link_(link),
      rank_(link.rank()),
      size_(link.size()),
      silent_s_(silent_s),
      heard_s_(static_cast<std::size_t>(link.size()), monotonic_s()) {
  // Signals are for the main thread.
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, &before);
  thread_ = std::thread([this] { talk(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

RankSession::~RankSession() {
  {
    const std::scoped_lock lock(mutex_);
    closing_ = true;
  }
  thread_.join();
  if (rank_ == 0) {
    for (int rank = 1; rank < size_; ++rank) link_.send(rank, kBye);
  }
  // MPI_Finalize would wait for a rank that is gone.
  if (lost_rank_ || silent_) {
    // The launcher passes on what was said only while the job lives.
    std::this_thread::sleep_for(kLastWords);
    link_.abort(kFailed);
  }
}

void RankSession::serve(Coordinator& coordinator) {
  const std::scoped_lock lock(mutex_);
  coordinator_ = &coordinator;
  for (double& heard_s : heard_s_) heard_s = monotonic_s();
}

void RankSession::stop_serving() {
  const std::scoped_lock lock(mutex_);
  coordinator_ = nullptr;
}

Json RankSession::ask(const Json& request) {
  if (rank_ == 0) {
    Json reply = coordinator_->handle(0, request);
    if (coordinator_->stopping()) stop_ = true;
    return checked(std::move(reply));
  }
  std::unique_lock lock(mutex_);
  reply_.reset();
  outbox_.push_back(dump_json(request));
  changed_.wait(lock, [this] { return reply_ || ended_ || silent_; });
  if (reply_) return checked(parse_json(*reply_, "reply of rank 0"));
  if (ended_) throw RunEnded{};
  fail(Fault::run, "rank {}: no sign of life of rank 0 for {:.0f} s", rank_, silent_s_);
}

void RankSession::receive_one(const RankMessage& message) {
  heard_s_[static_cast<std::size_t>(message.from)] = monotonic_s();
  if (message.text == kBeat) return;
  if (rank_ == 0) {
    link_.send(message.from,
               dump_json(coordinator_->handle(message.from, parse_json(message.text, "rank"))));
  } else if (message.text == kStop) {
    stop_ = true;
  } else if (message.text == kBye) {
    ended_ = stop_ = true;
    changed_.notify_all();
  } else {
    reply_ = message.text;
    changed_.notify_all();
  }
}

/// Before rank 0 serves, what arrives waits in the link.
bool RankSession::receive_all() {
  bool any = false;
  while (rank_ != 0 || coordinator_ != nullptr) {
    const auto message = link_.receive();
    if (!message) break;
    receive_one(*message);
    any = true;
  }
  return any;
}

void RankSession::send_beats(double now_s) {
  if (now_s - beat_s_ < std::min(kRankBeat_s, silent_s_ / 4)) return;
  beat_s_ = now_s;
  if (rank_ != 0) {
    link_.send(0, kBeat);
    return;
  }
  for (int rank = 1; rank < size_; ++rank) link_.send(rank, kBeat);
  if (coordinator_ != nullptr) coordinator_->heartbeat();
}

void RankSession::watch(double now_s) {
  if (rank_ != 0) {
    if (!ended_ && now_s - heard_s_[0] > silent_s_) {
      silent_ = stop_ = true;
      changed_.notify_all();
    }
    return;
  }
  if (coordinator_ == nullptr) return;
  for (int rank = 1; rank < size_; ++rank) {
    const double silence_s = now_s - heard_s_[static_cast<std::size_t>(rank)];
    if (silence_s <= silent_s_ || coordinator_->has_left(rank)) continue;
    lost_rank_ = true;
    coordinator_->lose(rank, fmt::format("gave no sign of life for {:.0f} s", silence_s));
  }
  if (!coordinator_->stopping()) return;
  stop_ = true;
  if (told_stop_) return;
  told_stop_ = true;
  for (int rank = 1; rank < size_; ++rank) link_.send(rank, kStop);
}

void RankSession::talk() {
  std::unique_lock lock(mutex_);
  while (true) {
    const double now_s = monotonic_s();
    for (std::string& text : outbox_) link_.send(0, std::move(text));
    outbox_.clear();
    const bool any = receive_all();
    send_beats(now_s);
    watch(now_s);
    // Rank 0 may go at once, the others when it says so or is gone.
    if (closing_ && (rank_ == 0 || ended_ || silent_)) return;
    if (any) continue;
    lock.unlock();
    std::this_thread::sleep_for(kPause);
    lock.lock();
  }
}

}  // namespace poros
