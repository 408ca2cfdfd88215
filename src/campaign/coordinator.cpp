// SPDX-License-Identifier: Apache-2.0
#include "campaign/coordinator.hpp"

#include <algorithm>

namespace poros {
namespace {
constexpr const char* kOrigin = "request of a rank";
}

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

Coordinator::Coordinator(const CampaignPlan& plan, JournalWriter& journal, Start start, int ranks)
    : plan_(plan),
      journal_(journal),
      start_(std::move(start)),
      first_seq_(static_cast<std::int64_t>(journal.receipts().size())),
      ranks_(static_cast<std::size_t>(ranks)) {
  for (const Receipt& receipt : journal.receipts()) {
    lines_[receipt.key].push_back(to_line(receipt));
  }
  // Finished groups are handed out too: their results are looked at and made anew where needed.
  for (std::size_t i = 0; i < plan.groups.size(); ++i) waiting_.push_back(i);
  std::stable_sort(waiting_.begin(), waiting_.end(), [&](std::size_t a, std::size_t b) {
    if (start_.unfinished[a] != start_.unfinished[b]) return bool{start_.unfinished[a]};
    return relative_cost(plan, plan.groups[a]) > relative_cost(plan, plan.groups[b]);
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
  if (ask == "next") {
    if (!self.placement) fail(Fault::run, "rank {} asks for work before it said hello", rank);
    return next(*self.placement);
  }
  if (ask == "receipt") return record(request);
  if (ask == "lock") {
    if (lock_holder_ && *lock_holder_ != rank) return {{"wait", true}};
    lock_holder_ = rank;
    return {{"locked", true}};
  }
  if (ask == "unlock") {
    if (lock_holder_ == rank) lock_holder_.reset();
  } else if (ask == "stop") {
    stopping_ = true;
  } else if (ask == "failed") {
    fail_with(Error(static_cast<Fault>(json_get<int>(request, "fault", kOrigin)),
                    json_get<std::string>(request, "message", kOrigin)));
  } else if (ask == "leave") {
    self.left = true;
    if (lock_holder_ == rank) lock_holder_.reset();
  } else {
    fail(Fault::run, "rank {} asks for \"{}\": unknown", rank, ask);
  }
  return Json::object();
}

Json Coordinator::hello(int rank, const Json& request) {
  const Placement placement = placement_from_json(request.at("placement"));
  for (std::size_t other = 0; other < ranks_.size(); ++other) {
    const auto& taken = ranks_[other].placement;
    if (!taken || static_cast<int>(other) == rank || placement.gpu_uuid.empty()) continue;
    if (taken->host != placement.host || taken->gpu_uuid != placement.gpu_uuid) continue;
    fail(Fault::environment,
         "{}: ranks {} and {} have the same GPU ({}); give each rank a GPU of its own",
         placement.host, other, rank, placement.gpu_uuid);
  }
  ranks_.at(static_cast<std::size_t>(rank)).placement = placement;
  return {{"identity",
           {{"campaign_id", start_.identity.campaign_id},
            {"created_at", start_.identity.created_at},
            {"threads", start_.identity.threads}}},
          {"epoch", journal_.epoch()},
          {"first_seq", first_seq_},
          {"left", start_.passes_left}};
}

Json Coordinator::next(const Placement& placement) {
  if (stopping_) return {{"end", true}};
  const auto found = std::find_if(waiting_.begin(), waiting_.end(), [&](std::size_t index) {
    const PlannedCell& cell = plan_.cells[plan_.groups[index].cells.front()];
    return fits_placement(cell.spec.hardware.gpu_name, placement);
  });
  if (found == waiting_.end()) return {{"end", true}};
  const ComparisonGroup& group = plan_.groups[*found];
  Json receipts = Json::array();
  const auto add = [&](const std::string& key) {
    for (const std::string& line : lines_[key]) receipts.push_back(line);
  };
  for (const std::size_t index : group.cells) add(plan_.cells[index].key);
  add(group.key);
  const Json reply{{"group", *found}, {"receipts", std::move(receipts)}};
  waiting_.erase(found);
  return reply;
}

Json Coordinator::record(const Json& request) {
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
  if (written.kind == "attempt" && written.fields.value("purpose", "") == "timed") {
    const std::string reason =
        json_find<std::string>(written.fields, "reason", kOrigin).value_or("");
    if (reason != "lost" && reason != "drained") --start_.passes_left;
  }
  return {{"line", line}, {"left", start_.passes_left}};
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
  for (const auto& [key, lines] : lines_) {
    for (const std::string& line : lines) ledger.add(receipt_from_line(line, "results.jsonl"));
  }
  return ledger;
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
