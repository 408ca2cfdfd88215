// SPDX-License-Identifier: Apache-2.0
// The driver as one rank of several: rank 0 hands out comparison groups and works on some itself.
#include "campaign/driver_ranks.hpp"

#include <chrono>
#include <thread>

#include "base/files.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

void pause() {
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

}  // namespace

Driver::InputLock::InputLock(Driver& driver) : session_(driver.session_) {
  held_ = session_ == nullptr;
  while (!held_ && !driver.stopping()) {
    held_ = session_->ask({{"ask", "lock"}}).contains("locked");
    if (!held_) pause();
    driver.live_.tick();
  }
}

Driver::InputLock::~InputLock() {
  if (session_ == nullptr || !held_) return;
  try {
    static_cast<void>(session_->ask({{"ask", "unlock"}}));
  } catch (const Error&) {  // the next question meets the same failure and reports it
  } catch (const RunEnded&) {
  }
}

void Driver::work() {
  CampaignResult ignored;  // rank 0 reads the results from their files
  try {
    while (true) {
      if (signals_.requested()) static_cast<void>(session_->ask({{"ask", "stop"}}));
      const Json task = session_->ask({{"ask", "next"}});
      if (!task.contains("group")) break;
      std::vector<Receipt> receipts;
      for (const Json& line : task.at("receipts")) {
        receipts.push_back(receipt_from_line(line.get<std::string>(), "reply of rank 0"));
      }
      ledger_ = Ledger(receipts);
      run_group(plan_.groups.at(task.at("group").get<std::size_t>()), ignored);
    }
  } catch (const RunEnded&) {
    return;
  } catch (const Error& error) {
    static_cast<void>(session_->ask({{"ask", "failed"},
                                     {"fault", static_cast<int>(error.fault())},
                                     {"message", error.what()}}));
  } catch (const fs::filesystem_error& error) {
    static_cast<void>(session_->ask(
        {{"ask", "failed"}, {"fault", static_cast<int>(Fault::io)}, {"message", error.what()}}));
  }
  static_cast<void>(session_->ask({{"ask", "leave"}}));
}

void Driver::follow() {
  try {
    const Json reply = session_->ask({{"ask", "hello"}, {"placement", to_json(placement_)}});
    const Json& identity = reply.at("identity");
    identity_ = {identity.at("campaign_id").get<std::string>(),
                 identity.at("created_at").get<std::string>(),
                 identity.at("threads").get<std::int64_t>()};
    first_seq_ = reply.at("first_seq").get<std::int64_t>();
    passes_left_ = reply.at("left").get<std::int64_t>();
    count_passes();
    live_.set_passes(passes_total_, passes_left_);
    make_context(reply.at("epoch").get<std::int64_t>());
    work();
  } catch (const RunEnded&) {  // rank 0 has said why
  }
}

void Driver::lead(CampaignResult& result) {
  count_passes();
  Coordinator::Start start;
  start.identity = identity_;
  for (const ComparisonGroup& group : plan_.groups) {
    const std::int64_t left = count_left(group);
    start.passes_left += left;
    start.unfinished.push_back(left > 0);
  }
  passes_left_ = start.passes_left;
  live_.set_passes(passes_total_, passes_left_);
  Coordinator coordinator(plan_, *journal_, std::move(start), session_->size());
  session_->serve(coordinator);
  try {
    static_cast<void>(session_->ask({{"ask", "hello"}, {"placement", to_json(placement_)}}));
    work();
  } catch (const Error&) {  // the coordinator has it
  }
  static_cast<void>(coordinator.handle(0, {{"ask", "leave"}}));
  bool said = false;
  while (!coordinator.all_left()) {
    if (signals_.requested() && !coordinator.stopping()) {
      static_cast<void>(coordinator.handle(0, {{"ask", "stop"}}));
    }
    if (!said) live_.set_activity("waiting for the other ranks");
    said = true;
    live_.tick();
    pause();
  }
  session_->stop_serving();
  if (const auto failure = coordinator.failure()) throw Error(*failure);
  ledger_ = coordinator.ledger();
  result.stopped = coordinator.stopping();
  result.unmatched = coordinator.unmatched();
  collect(result);
}

void Driver::collect(CampaignResult& result) const {
  result.passes_total = passes_total_;
  for (const ComparisonGroup& group : plan_.groups) {
    result.passes_left += count_left(group);
    if (auto artifacts = load_finished(group)) {
      for (RunArtifact& artifact : *artifacts) result.artifacts.push_back(std::move(artifact));
    }
    const ResultEntry* parity = ledger_.parity(group.key);
    if (parity != nullptr && plan_.spec.parity == "auto") {
      result.parity.push_back(parse_json(read_file(folder_ / parity->path), parity->path));
    }
  }
}

}  // namespace poros
