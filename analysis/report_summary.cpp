// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "analysis/format.hpp"
#include "analysis/report_parts.hpp"

namespace poros {
namespace {

constexpr std::size_t kMaxFitSentences = 8;

std::string listed(const std::vector<std::string>& items) {
  std::string text;
  for (std::size_t i = 0; i < items.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == items.size() ? " and " : ", ") + items[i];
  }
  return text;
}

/// "Qwen2.5-32B on RTX 3090 (24.0 GiB): runs with poros (11.2 GiB); out of memory with peft."
std::string fit_sentence(const Group& group) {
  std::vector<std::string> runs;
  std::map<Outcome, std::vector<std::string>> others;
  for (const Arm& arm : group.arms) {
    if (arm.outcome == Outcome::ok || arm.outcome == Outcome::flagged) {
      std::string text = arm.method;
      if (arm.memory_mb) text += fmt::format(" ({})", memory(arm.memory_mb));
      if (arm.outcome == Outcome::flagged) text += fmt::format(" (flagged {})", arm.words);
      runs.push_back(std::move(text));
    } else {
      others[arm.outcome].push_back(arm.method);
    }
  }
  std::string text = group.model.empty() ? group.model_id : group.model;
  if (!group.precision.empty()) text += " " + group.precision;
  if (!group.hardware.empty()) text += " on " + group.hardware;
  if (group.card_mb && !group.cpu) text += fmt::format(" ({})", memory(group.card_mb));
  text += runs.empty() ? ": no arm ran" : ": runs with " + listed(runs);
  for (const auto& [outcome, methods] : others) {
    text += fmt::format("; {}: {}", word(outcome), listed(methods));
  }
  return text + (group.cpu && !runs.empty() ? ". Memory is the host's peak RSS." : ".");
}

MethodSummary summary_of(const ReportModel& model, const std::string& method,
                         const std::string& reference) {
  MethodSummary result;
  result.method = method;
  result.reference = reference;
  std::vector<double> memory_ratios, time_ratios;
  for (const Group& group : model.groups) {
    const Arm *arm = nullptr, *other = nullptr;
    for (const Arm& candidate : group.arms) {
      if (candidate.method == method) arm = &candidate;
      if (candidate.method == reference) other = &candidate;
    }
    if (arm == nullptr || other == nullptr) continue;
    ++result.groups;
    const auto ran = [](const Arm& a) {
      return a.outcome == Outcome::ok || a.outcome == Outcome::flagged;
    };
    const bool flagged = arm->outcome == Outcome::flagged || other->outcome == Outcome::flagged;
    if (ran(*arm) && ran(*other) && flagged) ++result.excluded;
    if (group.reference != reference || (!arm->memory_ratio && !arm->time_ratio)) continue;
    ++result.compared;
    if (arm->memory_ratio) memory_ratios.push_back(*arm->memory_ratio);
    if (arm->time_ratio) time_ratios.push_back(*arm->time_ratio);
  }
  const auto fill = [](const std::vector<double>& ratios, auto& middle, auto& low, auto& high) {
    if (ratios.empty()) return;
    middle = median(ratios);
    low = *std::min_element(ratios.begin(), ratios.end());
    high = *std::max_element(ratios.begin(), ratios.end());
  };
  fill(memory_ratios, result.memory_ratio, result.memory_low, result.memory_high);
  fill(time_ratios, result.time_ratio, result.time_low, result.time_high);
  return result;
}

std::string spread(std::optional<double> low, std::optional<double> high) {
  const std::string least = significant(*low), most = significant(*high);
  return least == most ? "" : fmt::format(" ({}\u2013{}\u00d7)", least, most);
}

std::string ratio_sentence(const MethodSummary& s, bool cpu) {
  std::string text = fmt::format("Against {}, {} ", s.reference, s.method);
  if (s.memory_ratio) {
    text += fmt::format("takes {}{} the {}memory", factor(s.memory_ratio),
                        spread(s.memory_low, s.memory_high), cpu ? "host " : "");
  }
  if (s.time_ratio) {
    text += fmt::format("{}{}{} the time per step", s.memory_ratio ? " and " : "takes ",
                        factor(s.time_ratio), spread(s.time_low, s.time_high));
  }
  text += fmt::format(", {}over {} of {}", s.compared > 1 ? "median " : "", s.compared,
                      counted(s.groups, "comparison"));
  if (s.excluded > 0) text += fmt::format(" ({} excluded as flagged)", s.excluded);
  return text + ".";
}

std::string parity_sentence(const ReportModel& model) {
  std::size_t measured = 0, exact = 0, lean_arms = 0;
  std::string reference;
  for (const Group& group : model.groups) {
    for (const Arm& arm : group.arms) {
      if (arm.method == "poros" && arm.passes_ok > 0) ++lean_arms;
      if (!arm.parity || !arm.parity->bitwise_exact) continue;
      ++measured;
      if (*arm.parity->bitwise_exact) ++exact;
      reference = arm.parity->reference;
    }
  }
  if (measured == 0) return "Whether the lean arm is exact was not measured.";
  const std::string share = fmt::format("{} of {}", exact, counted(measured, "comparison"));
  std::string text =
      exact == measured
          ? fmt::format("poros is bit for bit the same training as {} in {} measured", reference,
                        share)
          : fmt::format("poros is bit for bit the same training as {} in only {} measured",
                        reference, share);
  if (lean_arms > measured) text += fmt::format(" ({} not measured)", lean_arms - measured);
  return text + ".";
}

}  // namespace

void summarise(ReportModel& model) {
  model.summary.push_back(model.counts.text() + ".");
  bool cpu = false;
  std::size_t sentences = 0;
  for (const Group& group : model.groups) {
    cpu = cpu || group.cpu;
    if (++sentences <= kMaxFitSentences) model.summary.push_back(fit_sentence(group));
  }
  if (sentences > kMaxFitSentences) {
    model.summary.push_back(fmt::format("{} more are in the table below.",
                                        counted(sentences - kMaxFitSentences, "comparison group")));
  }
  for (const char* reference : {"resident", "peft"}) {
    const bool used = std::any_of(model.groups.begin(), model.groups.end(),
                                  [&](const Group& group) { return group.reference == reference; });
    for (const std::string& method : model.methods) {
      if (!used || method == reference) continue;
      MethodSummary summary = summary_of(model, method, reference);
      if (summary.compared == 0 && summary.excluded == 0) continue;
      if (summary.compared > 0) model.summary.push_back(ratio_sentence(summary, cpu));
      model.ratios.push_back(std::move(summary));
    }
  }
  model.summary.push_back(parity_sentence(model));
  if (!model.problems.empty()) {
    model.summary.push_back(
        fmt::format("{} missing or altered; they are named below.",
                    counted(model.problems.size(), "record is", "records are")));
  }
}

}  // namespace poros
