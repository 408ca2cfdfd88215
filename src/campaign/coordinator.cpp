// SPDX-License-Identifier: Apache-2.0
#include "campaign/coordinator.hpp"

#include <algorithm>

#include "campaign/predict.hpp"

namespace poros {
namespace {
constexpr const char* kOrigin = "request of a rank";
}

namespace {

double relative_cost(const CampaignPlan& plan, const ComparisonGroup& group) {
  double cost = 0;
  for (const std::size_t index : group.cells) {
    const CellSpec& cell = plan.cells[index].spec;
    const TrainingSpec& training = cell.training;
    cost += cell.model.param_count_b.value_or(1) * static_cast<double>(training.steps) *
            static_cast<double>(training.seq_len) * static_cast<double>(training.batch_size) *
            static_cast<double>(training.gradient_accumulation_steps);
  }
  return cost;
}

std::optional<double> predicted_s(const CampaignPlan& plan, const ComparisonGroup& group) {
  double seconds = 0;
  for (const std::size_t index : group.cells) {
    const auto pass_s = predict(plan.cells[index].spec).s_per_pass;
    if (!pass_s) return std::nullopt;
    seconds += *pass_s * static_cast<double>(plan.spec.training.n_passes);
  }
  return seconds;
}

}  // namespace

std::vector<double> group_costs(const CampaignPlan& plan) {
  std::vector<double> costs;
  for (const ComparisonGroup& group : plan.groups) {
    const auto seconds = predicted_s(plan, group);
    if (!seconds) break;
    costs.push_back(*seconds);
  }
  if (costs.size() == plan.groups.size()) return costs;
  costs.clear();
  for (const ComparisonGroup& group : plan.groups) costs.push_back(relative_cost(plan, group));
  return costs;
}

Coordinator::Coordinator(const CampaignPlan& plan, JournalWriter& journal, Start start, int ranks)
    : plan_(plan),
      journal_(journal),
      start_(std::move(start)),
      first_seq_(static_cast<std::int64_t>(journal.receipts().size())),
      ranks_(static_cast<std::size_t>(ranks)),
      failures_(start_.max_failures) {
  for (const Receipt& receipt : start_.others) {
    others_[receipt.key].push_back(to_line(receipt));
    if (!start_.forget_faults) faults_.observe(receipt);
  }
  for (const Receipt& receipt : journal.receipts()) {
    lines_[receipt.key].push_back(to_line(receipt));
    if (!start_.forget_faults) faults_.observe(receipt);
  }
  // Finished groups are handed out too: their results are looked at and made anew where needed.
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    if (start_.groups[i].selected) waiting_.push_back(i);
  }
  const std::vector<double> costs = group_costs(plan);
  std::stable_sort(waiting_.begin(), waiting_.end(), [&](std::size_t a, std::size_t b) {
    const bool first = start_.groups[a].unfinished, second = start_.groups[b].unfinished;
    return first != second ? first : costs[a] > costs[b];
  });
}

Json Coordinator::handle(int rank, const Json& request) {
  const std::scoped_lock lock(mutex_);
  try {
    return answer(rank, request);
  } catch (const Error& error) {
    fail_with(error);
    return {{"error", error.what()}, {"fault", static_cast<int>(error.fault())}};
  }
}

void Coordinator::fail_with(const Error& error) {
  if (!failure_) failure_ = error;
  stopping_ = true;
}

Json Coordinator::answer(int rank, const Json& request) {
  const auto ask = json_get<std::string>(request, "ask", kOrigin);
  Rank& self = ranks_.at(static_cast<std::size_t>(rank));
  if (ask == "hello") return hello(rank, request);
  if (ask == "next") return next(rank, request.value("returned", false));
  if (ask == "receipt") return record(rank, request);
  if (ask == "admit") return admit(rank, request);
  if (ask == "lock") {
    if (lock_holder_ && *lock_holder_ != rank) return {{"wait", true}};
    lock_holder_ = rank;
    return {{"locked", true}};
  }
  if (ask == "unlock") {
    if (lock_holder_ == rank) lock_holder_.reset();
  } else if (ask == "release") {
    admission_.release(rank);
  } else if (ask == "more") {
    start_.passes_left += json_get<std::int64_t>(request, "passes", kOrigin);
  } else if (ask == "late") {
    out_of_time_ = true;
  } else if (ask == "stop") {
    stopping_ = true;
  } else if (ask == "failed") {
    fail_with(Error(static_cast<Fault>(json_get<int>(request, "fault", kOrigin)),
                    json_get<std::string>(request, "message", kOrigin)));
  } else if (ask == "leave") {
    self.left = true;
    self.group.reset();
    admission_.release(rank);
    if (lock_holder_ == rank) lock_holder_.reset();
  } else {
    fail(Fault::run, "rank {} asks for \"{}\": unknown", rank, ask);
  }
  return Json::object();
}

Json Coordinator::hello(int rank, const Json& request) {
  const Placement placement = placement_from_json(request.at("placement"));
  // Without the driver's word a GPU is known by the launcher's token for it.
  const auto device = [](const Placement& p) {
    return p.gpu_uuid.empty() ? p.gpu_token : p.gpu_uuid;
  };
  for (std::size_t other = 0; other < ranks_.size(); ++other) {
    const auto& taken = ranks_[other].placement;
    if (!taken || static_cast<int>(other) == rank || device(placement).empty()) continue;
    if (taken->host != placement.host || device(*taken) != device(placement)) continue;
    fail(Fault::environment,
         "{}: ranks {} and {} have the same GPU ({}); give each rank a GPU of its own",
         placement.host, other, rank, device(placement));
  }
  ranks_.at(static_cast<std::size_t>(rank)).placement = placement;
  return {{"identity",
           {{"campaign_id", start_.identity.campaign_id},
            {"created_at", start_.identity.created_at},
            {"threads", start_.identity.threads}}},
          {"epoch", journal_.epoch()},
          {"first_seq", first_seq_},
          {"left", start_.passes_left},
          {"set_aside", faults_.is_set_aside(placement.gpu_uuid)}};
}

bool Coordinator::is_set_aside(const Rank& rank) const {
  return rank.placement && faults_.is_set_aside(rank.placement->gpu_uuid);
}

/// A begun group waits for the GPU that has begun it, as long as a rank may have that.
bool Coordinator::belongs_elsewhere(std::size_t group, const Placement& placement) const {
  const std::string& home = start_.groups[group].begun_on;
  if (home.empty() || placement.gpu_uuid.empty() || home == placement.gpu_uuid) return false;
  return std::ranges::any_of(ranks_, [&](const Rank& rank) {
    if (rank.left || is_set_aside(rank)) return false;
    return !rank.placement || rank.placement->gpu_uuid == home;
  });
}

Json Coordinator::next(int rank, bool returned) {
  Rank& self = ranks_.at(static_cast<std::size_t>(rank));
  if (!self.placement) fail(Fault::run, "rank {} asks for work before it said hello", rank);
  if (returned && self.group) waiting_.insert(waiting_.begin(), *self.group);
  self.group.reset();
  if (stopping_ || is_set_aside(self)) return {{"end", true}};
  const auto is_ours = [&](std::size_t group) {
    const PlannedCell& cell = plan_.cells[plan_.groups[group].cells.front()];
    return fits_placement(cell.spec.hardware.gpu_name, *self.placement);
  };
  const auto found = std::ranges::find_if(waiting_, [&](std::size_t group) {
    return is_ours(group) && !belongs_elsewhere(group, *self.placement);
  });
  if (found != waiting_.end()) {
    const std::size_t group = *found;
    waiting_.erase(found);
    return hand_out(self, group);
  }
  // A group that another rank has may come back, and one that waits for its GPU may be freed.
  const bool may_come =
      std::ranges::any_of(waiting_, is_ours) || std::ranges::any_of(ranks_, [&](const Rank& other) {
        return other.group && is_ours(*other.group);
      });
  return {{may_come ? "wait" : "end", true}};
}

Json Coordinator::hand_out(Rank& rank, std::size_t group) {
  rank.group = group;
  Json receipts = Json::array(), others = Json::array();
  const auto add = [&](const std::string& key) {
    if (const auto own = lines_.find(key); own != lines_.end()) {
      for (const std::string& line : own->second) receipts.push_back(line);
    }
    if (const auto other = others_.find(key); other != others_.end()) {
      for (const std::string& line : other->second) others.push_back(line);
    }
  };
  for (const std::size_t index : plan_.groups[group].cells) add(plan_.cells[index].key);
  add(plan_.groups[group].key);
  return {{"group", group}, {"receipts", std::move(receipts)}, {"others", std::move(others)}};
}

Json Coordinator::admit(int rank, const Json& request) {
  const Rank& self = ranks_.at(static_cast<std::size_t>(rank));
  if (!self.placement) fail(Fault::run, "rank {} wants to run before it said hello", rank);
  const bool admitted = admission_.admit(rank, {self.placement->host, self.placement->host_bytes,
                                                json_get<std::int64_t>(request, "bytes", kOrigin),
                                                json_get<bool>(request, "exclusive", kOrigin)});
  return {{admitted ? "admitted" : "wait", true}};
}

Json Coordinator::record(int rank, const Json& request) {
  const Json& json = request.at("receipt");
  Receipt receipt;
  receipt.kind = json_get<std::string>(json, "kind", kOrigin);
  receipt.key = json_get<std::string>(json, "key", kOrigin);
  receipt.fields = json_get<Json>(json, "fields", kOrigin);
  receipt.artifact_path = json_get<std::string>(json, "artifact_path", kOrigin);
  receipt.artifact_sha256 = json_get<std::string>(json, "artifact_sha256", kOrigin);
  const Receipt written = journal_.append(std::move(receipt));
  const std::string line = to_line(written);
  lines_[written.key].push_back(line);
  faults_.observe(written);
  failures_.count(written);
  if (failures_.reached()) stopping_ = true;
  if (written.kind == "attempt" && written.fields.value("purpose", "") == "timed") {
    const std::string reason =
        json_find<std::string>(written.fields, "reason", kOrigin).value_or("");
    if (reason != "lost" && reason != "drained") --start_.passes_left;
  }
  return {{"line", line},
          {"left", start_.passes_left},
          {"set_aside", is_set_aside(ranks_.at(static_cast<std::size_t>(rank)))}};
}

void Coordinator::heartbeat() {
  const std::scoped_lock lock(mutex_);
  try {
    journal_.heartbeat();
  } catch (const Error& error) {
    fail_with(error);
  }
}

void Coordinator::lose(int rank, const std::string& why) {
  const std::scoped_lock lock(mutex_);
  ranks_.at(static_cast<std::size_t>(rank)).left = true;
  fail_with(Error(Fault::run, fmt::format("rank {} {}", rank, why)));
}

bool Coordinator::stopping() const {
  const std::scoped_lock lock(mutex_);
  return stopping_;
}

bool Coordinator::all_left() const {
  const std::scoped_lock lock(mutex_);
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.left; });
}

bool Coordinator::has_left(int rank) const {
  const std::scoped_lock lock(mutex_);
  return ranks_.at(static_cast<std::size_t>(rank)).left;
}

std::optional<Error> Coordinator::failure() const {
  const std::scoped_lock lock(mutex_);
  return failure_;
}

Ledger Coordinator::ledger() const {
  const std::scoped_lock lock(mutex_);
  Ledger ledger;
  for (const Receipt& receipt : start_.others) ledger.add(receipt, true);
  for (const auto& [key, lines] : lines_) {
    for (const std::string& line : lines) ledger.add(receipt_from_line(line, "results.jsonl"));
  }
  return ledger;
}

std::int64_t Coordinator::failed_cells() const {
  const std::scoped_lock lock(mutex_);
  return failures_.reached() ? failures_.failures() : 0;
}

bool Coordinator::out_of_time() const {
  const std::scoped_lock lock(mutex_);
  return out_of_time_;
}

std::vector<std::string> Coordinator::unmatched() const {
  const std::scoped_lock lock(mutex_);
  std::vector<std::string> names;
  if (stopping_) return names;
  for (const std::size_t index : waiting_) {
    const std::string& name = plan_.cells[plan_.groups[index].cells.front()].spec.hardware.gpu_name;
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

}  // namespace poros
