// SPDX-License-Identifier: Apache-2.0
#include "campaign/progress.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "campaign/admission.hpp"
#include "campaign/predict.hpp"

namespace poros {
namespace {

/// The base of our own arms waits in pinned memory, which can't be swapped out.
std::optional<Skip> too_large_for_host(const PlannedCell& cell) {
  if (!is_own_arm(cell.spec.method)) return std::nullopt;
  const auto bytes = predict(cell.spec).host_bytes;
  static const std::int64_t usable = usable_host_bytes();  // it reads files
  if (!bytes || *bytes <= usable) return std::nullopt;
  return Skip{"host_memory",
              fmt::format("needs {:.1f} GB of host memory, this host gives {:.1f} GB",
                          static_cast<double>(*bytes) / 1e9, static_cast<double>(usable) / 1e9)};
}

}  // namespace

Progress::Progress(const CampaignPlan& plan, const InstallPaths& paths, Selection selection,
                   const ProgressOptions& options)
    : plan_(plan), selection_(std::move(selection)), options_(options) {
  for (const PlannedCell& cell : plan.cells) {
    const std::string& method = cell.spec.method;
    if (!arms_.contains(method)) arms_[method] = arm_program(paths, method, plan.spec.device);
  }
}

const ArmProgram& Progress::arm(const PlannedCell& cell) const {
  return arms_.at(cell.spec.method);
}

const std::optional<Skip>& Progress::skip(const PlannedCell& cell) const {
  const ArmProgram& program = arm(cell);
  if (program.skip) return program.skip;
  const auto known = host_memory_.find(cell.key);
  if (known != host_memory_.end()) return known->second;
  return host_memory_.emplace(cell.key, too_large_for_host(cell)).first->second;
}

bool Progress::is_selected(const PlannedCell& cell) const {
  return selection_.has_cell(static_cast<std::size_t>(&cell - plan_.cells.data()));
}

bool Progress::is_settled(const AttemptEntry& entry) const {
  if (!entry.counts()) return false;
  return !(options_.retry && entry.failed() && entry.seq < first_seq);
}

bool Progress::needs_run(const PlannedCell& cell, std::int64_t pass) const {
  if (!is_selected(cell) || skip(cell)) return false;
  // A pass that did not end ok ends its cell.
  const auto done_now = [this](const AttemptEntry& entry) {
    const bool lost_now = entry.seq >= first_seq && entry.reason == "lost" && !entry.superseded;
    return is_settled(entry) || lost_now;  // lost too often: not again in this run
  };
  for (const AttemptEntry& entry : ledger.passes(cell.key, "timed")) {
    if (entry.pass < pass && done_now(entry) && entry.status != "ok") return false;
  }
  const AttemptEntry* last = ledger.last_attempt(cell.key, "timed", pass);
  return last == nullptr || !done_now(*last);
}

bool Progress::wants_parity(const ComparisonGroup& group) const {
  const PlannedCell* a = plan_.find(group, "poros");
  const PlannedCell* b = plan_.find(group, "resident");
  if (plan_.spec.parity != "auto" || a == nullptr || b == nullptr) return false;
  for (const PlannedCell* cell : {a, b}) {
    if (skip(*cell) || !is_selected(*cell)) return false;
  }
  const ResultEntry* done = ledger.parity(group.key);
  if (done == nullptr) return true;
  return options_.retry && done->status != "ok" && done->seq < first_seq;
}

std::int64_t Progress::count_left(const ComparisonGroup& group, std::int64_t passes) const {
  std::int64_t left = 0;
  for (const PassSlot& slot : interleaved_passes(group, passes)) {
    left += needs_run(plan_.cells[slot.cell], slot.pass) ? 1 : 0;
  }
  return left;
}

std::int64_t Progress::count_left(const ComparisonGroup& group) const {
  return count_left(group, passes_of(group));
}

bool Progress::has_begun(const ComparisonGroup& group, std::int64_t pass) const {
  return std::ranges::any_of(group.cells, [&](std::size_t cell) {
    const AttemptEntry* last = ledger.last_attempt(plan_.cells[cell].key, "timed", pass);
    return last != nullptr && last->counts();
  });
}

bool Progress::is_stable(const ComparisonGroup& group) const {
  for (const std::size_t cell : group.cells) {
    std::vector<double> times;
    for (const AttemptEntry& entry : ledger.passes(plan_.cells[cell].key, "timed")) {
      const bool good = entry.counts() && entry.status == "ok";
      if (good && entry.s_per_step) times.push_back(*entry.s_per_step);
    }
    if (times.size() < 2) continue;
    std::ranges::sort(times);
    const double median = (times[(times.size() - 1) / 2] + times[times.size() / 2]) / 2;
    if (times.back() - times.front() > *options_.until_stable * median) return false;
  }
  return true;
}

std::int64_t Progress::passes_of(const ComparisonGroup& group) const {
  std::int64_t passes = plan_.spec.training.n_passes;
  while (has_begun(group, passes)) ++passes;
  if (!options_.until_stable || passes >= options_.max_passes) return passes;
  const bool wants_more = count_left(group, passes) == 0 && !is_stable(group);
  // Not for a group in which nothing can run any more.
  const bool can_run = std::ranges::any_of(
      group.cells, [&](std::size_t cell) { return needs_run(plan_.cells[cell], passes); });
  return wants_more && can_run ? passes + 1 : passes;
}

std::int64_t Progress::count_all() const {
  std::int64_t all = 0;
  for (const ComparisonGroup& group : plan_.groups) {
    all += passes_of(group) * std::ranges::count_if(group.cells, [&](std::size_t cell) {
             return is_selected(plan_.cells[cell]) && !skip(plan_.cells[cell]);
           });
  }
  return all;
}

std::string Progress::begun_on(const ComparisonGroup& group) const {
  for (const std::size_t index : group.cells) {
    for (const AttemptEntry& entry : ledger.passes(plan_.cells[index].key, "timed")) {
      if (entry.counts() && !entry.gpu_uuid.empty()) return entry.gpu_uuid;
    }
  }
  return {};
}

std::int64_t Progress::supersede_elsewhere(const ComparisonGroup& group,
                                           const std::string& gpu_uuid) {
  const std::int64_t before = count_left(group);
  if (before == 0 || gpu_uuid.empty()) return 0;
  for (const std::size_t index : group.cells) {
    static_cast<void>(ledger.supersede(plan_.cells[index].key, gpu_uuid));
  }
  return count_left(group) - before;
}

}  // namespace poros
