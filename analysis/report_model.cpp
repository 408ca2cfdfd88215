// SPDX-License-Identifier: Apache-2.0
#include "analysis/report_model.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <tuple>

#include <fmt/format.h>

#include "analysis/format.hpp"
#include "analysis/report_parts.hpp"
#include "base/sha256.hpp"

namespace poros {
namespace {

std::size_t method_rank(const std::string& method) {
  static constexpr std::array kOrder{"resident", "poros", "unsloth", "peft", "accelerate_offload"};
  const auto found = std::find(kOrder.begin(), kOrder.end(), method);
  return static_cast<std::size_t>(found - kOrder.begin());
}

bool method_before(const std::string& a, const std::string& b) {
  return std::pair(method_rank(a), a) < std::pair(method_rank(b), b);
}

Outcome outcome_of(const RunArtifact& artifact) {
  if (artifact.status == "oom") return Outcome::oom;
  if (artifact.status == "error") return Outcome::error;
  if (artifact.status == "skipped") return Outcome::skipped;
  return artifact.flags.empty() ? Outcome::ok : Outcome::flagged;
}

std::string words_of(const Arm& arm) {
  std::string text = word(arm.outcome);
  if (arm.outcome == Outcome::flagged) {
    text.clear();
    for (const auto& flag : arm.flags) text += (text.empty() ? "" : ", ") + flag;
  } else if (arm.outcome != Outcome::ok && !arm.reason.empty()) {
    text += ": " + arm.reason;
  }
  return text;
}

/// The first pass that has this series.
Curve curve_of(const CampaignCell& cell, std::vector<double> StepSeries::*series) {
  for (const CampaignPass& pass : cell.passes) {
    const auto& values = pass.record.steps.*series;
    if (!values.empty()) return {values, pass.record.pass, pass.path};
  }
  return {};
}

void take_times(Arm& arm, const RunArtifact& artifact) {
  arm.pass_times = artifact.pass_s_per_step;
  if (!artifact.pass_s_per_step.empty()) {
    const auto& times = artifact.pass_s_per_step;
    arm.s_per_step = median(times);
    if (times.size() > 1) {  // one pass has no spread
      arm.s_low = *std::min_element(times.begin(), times.end());
      arm.s_high = *std::max_element(times.begin(), times.end());
      arm.s_stddev = stddev(times);
    }
  } else {  // older artifacts have the figures alone
    arm.s_per_step = artifact.s_per_step;
    arm.s_low = artifact.s_per_step_min;
    arm.s_high = artifact.s_per_step_max;
    arm.s_stddev = artifact.s_per_step_stddev;
  }
  arm.tokens_per_s = artifact.tok_per_sec;
  if (artifact.tokens_per_step && arm.s_per_step && *arm.s_per_step > 0) {
    arm.tokens_per_s = static_cast<double>(*artifact.tokens_per_step) / *arm.s_per_step;
  }
}

std::string scalar_text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : dump_json(value);
}

std::string settings_text(const CampaignCell& cell) {
  std::string text;
  if (cell.passes.empty()) return text;
  for (const auto& [name, value] : cell.passes.front().record.arm.items()) {
    if (value.is_null()) continue;
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", name, scalar_text(value));
  }
  return text;
}

/// The same in two campaigns exactly when both asked the same training of the cell.
std::string variant_of(const Json& spec_cell) {
  Json asked = Json::object();
  for (const char* part : {"lora", "peer", "poros", "training"}) {
    if (spec_cell.contains(part)) asked[part] = spec_cell.at(part);
  }
  if (asked.empty()) return "";
  if (asked.contains("training") && asked["training"].is_object()) {
    Json& training = asked["training"];
    training.erase("n_passes");
    // The path of the data; what was read is in token_sha256.
    if (training.contains("dataset") && training["dataset"].is_object()) {
      training["dataset"].erase("source");
    }
  }
  return sha256_hex(dump_json(asked)).substr(0, 8);
}

Arm make_arm(const CampaignCell& cell) {
  const RunArtifact& artifact = cell.artifact;
  Arm arm;
  arm.method = artifact.method;
  arm.record = cell.path;
  arm.outcome = outcome_of(artifact);
  arm.flags = artifact.flags;
  arm.reason = artifact.reason.value_or("");
  arm.message = artifact.error_message.value_or("");
  arm.words = words_of(arm);
  arm.memory_is_host = artifact.device == "cpu";
  arm.memory_mb = arm.memory_is_host ? artifact.host_rss_peak_mb : artifact.vram_peak_mb;
  if (!arm.memory_is_host && arm.memory_mb && artifact.vram_total_mb) {
    arm.memory_share = *arm.memory_mb / *artifact.vram_total_mb;
  }
  take_times(arm, artifact);
  arm.load_s = artifact.load_s;
  arm.host_rss_mb = artifact.host_rss_peak_mb;
  arm.pinned_mb = artifact.pinned_mb;
  arm.passes_ok = artifact.n_passes;
  arm.passes_expected = std::max(artifact.n_passes_expected, artifact.n_passes);
  arm.first_loss = artifact.first_step_loss;
  arm.mean_first10 = artifact.mean_loss_first10;
  arm.mean_last10 = artifact.mean_loss_last10;
  arm.trainable_params = artifact.trainable_params;
  arm.token_sha256 = artifact.token_sha256;
  arm.adapter_sha256 = artifact.adapter_sha256;
  arm.weights = artifact.weights;
  arm.settings = settings_text(cell);
  arm.variant = variant_of(artifact.spec_cell);
  arm.loss = curve_of(cell, &StepSeries::loss);
  arm.step_time = curve_of(cell, &StepSeries::s_per_step);
  arm.memory =
      curve_of(cell, arm.memory_is_host ? &StepSeries::host_rss_mb : &StepSeries::allocated_mb);
  if (artifact.bitwise_exact || artifact.parity_loss_max_diff || artifact.parity_weight_max_diff) {
    arm.parity = Parity{"resident",
                        artifact.bitwise_exact,
                        artifact.parity_loss_max_diff,
                        artifact.parity_weight_max_diff,
                        {},
                        cell.path};
  }
  return arm;
}

std::int64_t warmup_of(const RunArtifact& artifact) {
  const auto training = artifact.spec_cell.find("training");
  if (training == artifact.spec_cell.end()) return 0;
  return json_find<std::int64_t>(*training, "warmup_steps", "spec_cell").value_or(0);
}

/// Groups under construction, in the order in which spec.json or the journal names them.
class Groups {
 public:
  explicit Groups(const Campaign& campaign) : campaign_(campaign) {
    if (const auto cells = campaign.spec.find("cells"); cells != campaign.spec.end()) {
      for (const auto& [key, cell] : cells->items()) {
        const bool listed = cells->is_array();
        const auto index = json_find<std::int64_t>(cell, "index", kSpecFile);
        order_[listed ? json_find<std::string>(cell, "key", kSpecFile).value_or("") : key] =
            index.value_or(listed ? static_cast<std::int64_t>(order_.size()) : 0);
      }
    }
  }

  void add(const CampaignCell& cell) {
    const RunArtifact& artifact = cell.artifact;
    const std::string key =
        !artifact.group_key.empty()
            ? artifact.group_key
            : artifact.model_id + '\n' + artifact.precision + '\n' + artifact.hardware;
    Entry& entry = at(key, artifact.cell_key, cell.seq);
    Group& group = entry.group;
    if (group.model.empty()) group.model = artifact.display_name;
    if (group.model_id.empty()) group.model_id = artifact.model_id;
    if (group.precision.empty()) group.precision = artifact.precision;
    group.cpu = group.cpu || artifact.device == "cpu";
    if (artifact.vram_total_mb && !group.card_mb) group.card_mb = artifact.vram_total_mb;
    group.warmup_steps = std::max(group.warmup_steps, warmup_of(artifact));
    // What a measured cell found on the machine beats what the spec calls it.
    if (group.hardware.empty() || (artifact.n_passes > 0 && !entry.measured)) {
      group.hardware = artifact.hardware;
      entry.measured = artifact.n_passes > 0;
    }
    group.arms.push_back(make_arm(cell));
  }

  /// A cell without a receipt. @returns false when nothing but its key is known
  bool add_pending(const std::string& key) {
    const auto cells = campaign_.spec.find("cells");
    if (cells == campaign_.spec.end()) return false;
    Json cell;
    if (cells->is_object() && cells->contains(key)) cell = cells->at(key);
    for (const Json& item : *cells) {
      if (cells->is_array() && item.value("key", "") == key) cell = item;
    }
    const auto text = [&](const char* name) {
      return json_find<std::string>(cell, name, kSpecFile).value_or("");
    };
    if (text("method").empty() || text("group_key").empty()) return false;
    Group& group = at(text("group_key"), key, std::numeric_limits<std::int64_t>::max()).group;
    if (group.model.empty()) group.model = text("model");
    if (group.precision.empty()) group.precision = text("precision");
    Arm arm;
    arm.method = text("method");
    arm.words = word(Outcome::pending);
    group.arms.push_back(std::move(arm));
    return true;
  }

  std::vector<Group> finish() {
    std::vector<Entry*> sorted;
    for (auto& [key, entry] : entries_) sorted.push_back(&entry);
    std::sort(sorted.begin(), sorted.end(),
              [](const Entry* a, const Entry* b) { return a->place < b->place; });
    std::vector<Group> groups;
    for (Entry* entry : sorted) {
      Group& group = entry->group;
      group.id = "g" + std::to_string(groups.size() + 1);
      std::stable_sort(group.arms.begin(), group.arms.end(), [](const Arm& a, const Arm& b) {
        return method_before(a.method, b.method);
      });
      groups.push_back(std::move(group));
    }
    return groups;
  }

 private:
  struct Entry {
    Group group;
    std::tuple<std::int64_t, std::int64_t, std::string> place;  // spec's order, journal's, key
    bool measured = false;
  };

  Entry& at(const std::string& key, const std::string& cell_key, std::int64_t seq) {
    const auto known = order_.find(cell_key);
    const std::int64_t index =
        known == order_.end() ? std::numeric_limits<std::int64_t>::max() : known->second;
    const auto [found, is_new] = entries_.try_emplace(key);
    found->second.group.key = key;
    const auto place = std::tuple(index, seq, key);
    if (is_new || place < found->second.place) found->second.place = place;
    return found->second;
  }

  const Campaign& campaign_;
  std::map<std::string, std::int64_t> order_;
  std::map<std::string, Entry> entries_;
};

/// Joins the parity records, the last of each group and method counting.
void join_parity(const Campaign& campaign, std::vector<Group>& groups) {
  std::map<std::string, Group*> by_key;
  for (Group& group : groups) by_key[group.key] = &group;
  for (const CampaignParity& parity : campaign.parity) {
    const auto group = by_key.find(parity.group_key);
    if (group == by_key.end()) continue;
    const std::string where = fmt::format("parity record {}", parity.seq);
    const auto text = [&](const char* name) {
      return json_find<std::string>(parity.fields, name, where).value_or("");
    };
    const std::string method = text("method_a").empty() ? text("method") : text("method_a");
    for (Arm& arm : group->second->arms) {
      if (arm.method != method) continue;
      arm.parity = Parity{text("method_b").empty() ? "resident" : text("method_b"),
                          json_find<bool>(parity.fields, "bitwise_exact", where),
                          json_find<double>(parity.fields, "parity_loss_max_diff", where),
                          json_find<double>(parity.fields, "parity_weight_max_diff", where),
                          json_find<std::int64_t>(parity.fields, "steps", where),
                          parity.path};
    }
  }
}

/// Ratios against the reference arm: resident where it ended ok without a flag, else peft.
void compare_arms(Group& group) {
  const Arm* reference = nullptr;
  for (const char* method : {"resident", "peft"}) {
    for (const Arm& arm : group.arms) {
      if (reference == nullptr && arm.method == method && arm.outcome == Outcome::ok) {
        reference = &arm;
      }
    }
  }
  if (reference == nullptr) return;
  group.reference = reference->method;
  for (Arm& arm : group.arms) {
    if (&arm == reference || arm.outcome != Outcome::ok) continue;
    if (arm.memory_mb && reference->memory_mb && *reference->memory_mb > 0) {
      arm.memory_ratio = *arm.memory_mb / *reference->memory_mb;
    }
    if (!arm.s_per_step || !reference->s_per_step || !(*reference->s_per_step > 0)) continue;
    arm.time_ratio = *arm.s_per_step / *reference->s_per_step;
    if (arm.pass_times.size() >= 2 && reference->pass_times.size() >= 2) {
      arm.time_ratio_interval = bootstrap_ratio(arm.pass_times, reference->pass_times);
    }
  }
}

}  // namespace

const char* word(Outcome outcome) {
  static constexpr std::array kWords{"ok",    "flagged", "out of memory",
                                     "error", "skipped", "not run"};
  return kWords[static_cast<std::size_t>(outcome)];
}

std::string Group::title() const {
  std::string text = model.empty() ? model_id : model;
  for (const std::string& part : {precision, hardware}) {
    if (!part.empty()) text += ", " + part;
  }
  return text;
}

std::string Counts::text() const {
  std::string parts;
  for (std::size_t i = 0; i < kOutcomes; ++i) {
    if (of[i] == 0 && i != 0) continue;
    parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ",
                         grouped(static_cast<std::int64_t>(of[i])), word(static_cast<Outcome>(i)));
  }
  return fmt::format("{} expected: {}", counted(expected, "cell"), parts);
}

ReportModel make_report_model(const Campaign& campaign) {
  ReportModel model;
  Groups groups(campaign);
  for (const CampaignCell& cell : campaign.cells) groups.add(cell);
  for (const std::string& key : campaign.pending) {
    if (!groups.add_pending(key)) model.unnamed_pending.push_back(key);
  }
  model.groups = groups.finish();
  join_parity(campaign, model.groups);
  for (Group& group : model.groups) {
    compare_arms(group);
    for (const Arm& arm : group.arms) {
      ++model.counts.of[static_cast<std::size_t>(arm.outcome)];
      if (std::find(model.methods.begin(), model.methods.end(), arm.method) ==
          model.methods.end()) {
        model.methods.push_back(arm.method);
      }
    }
  }
  model.counts.of[static_cast<std::size_t>(Outcome::pending)] += model.unnamed_pending.size();
  for (const std::size_t count : model.counts.of) model.counts.expected += count;
  std::sort(model.methods.begin(), model.methods.end(), method_before);
  model.problems = campaign.problems;
  describe_campaign(campaign, model);
  describe_conditions(campaign, model);
  summarise(model);
  return model;
}

}  // namespace poros
