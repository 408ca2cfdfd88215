// SPDX-License-Identifier: Apache-2.0
// The driver as one rank of several: rank 0 hands out comparison groups and works on some itself.
#include "campaign/driver_ranks.hpp"

#include <chrono>
#include <thread>

#include "base/files.hpp"
#include "campaign/predict.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

void pause() {
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

/// For destructors: the next question meets the same failure and reports it.
void tell(RankSession& session, const Json& request) {
  try {
    static_cast<void>(session.ask(request));
  } catch (const Error&) {
  } catch (const RunEnded&) {
  }
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
  if (session_ != nullptr && held_) tell(*session_, {{"ask", "unlock"}});
}

Driver::HostTurn::HostTurn(Driver& driver, const PlannedCell& cell) : session_(driver.session_) {
  granted_ = session_ == nullptr || session_->size() == 1;
  if (granted_) return;
  const std::string& method = cell.spec.method;
  const bool streams = method == "poros" || method == "accelerate_offload";
  const Json request{{"ask", "admit"},
                     {"bytes", predict(cell.spec).host_bytes.value_or(0)},
                     {"exclusive", streams && driver.options_.exclusive_host}};
  bool said = false;
  while (!granted_ && !driver.stopping()) {
    asked_ = true;
    granted_ = session_->ask(request).contains("admitted");
    if (granted_) break;
    if (!said) driver.live_.set_activity("waiting for room on this host for " + cell.label());
    said = true;
    driver.live_.tick();
    pause();
  }
  if (said) driver.live_.set_activity("");
}

Driver::HostTurn::~HostTurn() {
  if (asked_) tell(*session_, {{"ask", "release"}});
}

void Driver::work() {
  CampaignResult ignored;  // rank 0 reads the results from their files
  try {
    bool returned = false;
    while (true) {
      if (signals_.requested()) static_cast<void>(session_->ask({{"ask", "stop"}}));
      if (!limits_.allows({})) {  // what is left is left
        static_cast<void>(session_->ask({{"ask", "late"}}));
        break;
      }
      const Json task = session_->ask({{"ask", "next"}, {"returned", returned}});
      returned = false;
      if (task.contains("wait")) {
        live_.set_activity("waiting: another rank has the last cells for this GPU");
        live_.tick();
        pause();
        continue;
      }
      live_.set_activity("");
      if (!task.contains("group")) break;
      progress_.ledger = Ledger();
      for (const char* origin : {"others", "receipts"}) {
        for (const Json& line : task.at(origin)) {
          progress_.ledger.add(receipt_from_line(line.get<std::string>(), "reply of rank 0"),
                               std::string_view(origin) == "others");
        }
      }
      run_group(plan_.groups.at(task.at("group").get<std::size_t>()), ignored);
      returned = set_aside_;
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
    progress_.first_seq = reply.at("first_seq").get<std::int64_t>();
    passes_left_ = reply.at("left").get<std::int64_t>();
    set_aside_ = reply.at("set_aside").get<bool>();
    passes_total_ = progress_.count_all();
    live_.set_passes(passes_total_, passes_left_);
    make_context(reply.at("epoch").get<std::int64_t>());
    work();
  } catch (const RunEnded&) {  // rank 0 has said why
  }
}

void Driver::lead(CampaignResult& result) {
  passes_total_ = progress_.count_all();
  Coordinator::Start start;
  start.identity = identity_;
  start.others = others_;
  start.max_failures = options_.max_failures;
  start.forget_faults = options_.retry;
  for (const ComparisonGroup& group : plan_.groups) {
    const std::int64_t left = progress_.count_left(group);
    start.passes_left += left;
    start.groups.push_back({progress_.selection().has_group(group), left > 0,
                            left > 0 ? progress_.begun_on(group) : ""});
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
  progress_.ledger = coordinator.ledger();
  result.failed_cells = coordinator.failed_cells();
  result.stopped = coordinator.stopping() && result.failed_cells == 0;
  result.out_of_time = coordinator.out_of_time();
  result.unmatched = coordinator.unmatched();
  collect(result);
}

void Driver::collect(CampaignResult& result) const {
  result.passes_total = passes_total_;
  for (const ComparisonGroup& group : plan_.groups) {
    if (!progress_.selection().has_group(group)) continue;
    result.passes_left += progress_.count_left(group);
    if (auto artifacts = load_finished(group)) {
      for (RunArtifact& artifact : *artifacts) result.artifacts.push_back(std::move(artifact));
    }
    if (plan_.spec.parity != "auto") continue;
    if (auto parity = load_parity(group)) result.parity.push_back(std::move(*parity));
  }
}

}  // namespace poros
