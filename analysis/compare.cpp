// SPDX-License-Identifier: Apache-2.0
#include "analysis/compare.hpp"

#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "analysis/escape.hpp"
#include "analysis/format.hpp"
#include "base/error.hpp"

namespace poros {
namespace {

using Place = std::pair<const Group*, const Arm*>;

/// Every arm by what makes it the same cell in another campaign; a repeated one gets a number.
std::map<std::vector<std::string>, Place> arms_by_identity(const ReportModel& model,
                                                           bool with_hardware) {
  std::map<std::vector<std::string>, Place> arms;
  for (const Group& group : model.groups) {
    for (const Arm& arm : group.arms) {
      std::vector<std::string> identity = {group.model_id.empty() ? group.model : group.model_id,
                                           group.precision, arm.method, arm.variant,
                                           with_hardware ? group.hardware : ""};
      for (int n = 2; !arms.emplace(identity, Place{&group, &arm}).second; ++n) {
        identity.resize(5);
        identity.push_back(std::to_string(n));
      }
    }
  }
  return arms;
}

std::string hardware_text(const ReportModel& model) {
  std::set<std::string> names;
  for (const Group& group : model.groups) {
    if (!group.hardware.empty()) names.insert(group.hardware);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

void judge(const Arm& a, const Arm& b, ComparedCell& cell) {
  const bool ok_a = a.outcome == Outcome::ok, ok_b = b.outcome == Outcome::ok;
  if (!ok_a || !ok_b) {
    const auto failed = [](const Arm& arm) {
      return arm.outcome == Outcome::oom || arm.outcome == Outcome::error;
    };
    if (ok_a && b.outcome != Outcome::flagged) cell.verdict = Verdict::lost;
    if (ok_b && failed(a)) cell.verdict = Verdict::gained;
    return;
  }
  if (a.memory_mb && b.memory_mb && *a.memory_mb > 0 && a.memory_is_host == b.memory_is_host) {
    cell.memory_ratio = *b.memory_mb / *a.memory_mb;
  }
  if (a.pass_times.empty() || b.pass_times.empty()) return;
  cell.verdict = Verdict::undecided;
  cell.time_ratio = median(b.pass_times) / median(a.pass_times);
  if (a.pass_times.size() < 2 || b.pass_times.size() < 2) return;
  const Interval interval = bootstrap_ratio(b.pass_times, a.pass_times);
  cell.time_low = interval.low;
  cell.time_high = interval.high;
  cell.verdict = interval.high < 1  ? Verdict::faster
                 : interval.low > 1 ? Verdict::slower
                                    : Verdict::same;
}

bool is_regression(const ComparedCell& cell, double share) {
  if (cell.verdict == Verdict::lost) return true;
  if (cell.verdict == Verdict::slower && *cell.time_ratio > 1 + share) return true;
  return cell.memory_ratio && *cell.memory_ratio > 1 + share;
}

/// Leaves a variant's name only where the method alone does not say which cell it is.
void name_variants(std::vector<ComparedCell>& cells) {
  const auto what = [](const ComparedCell& c) {
    return std::vector<std::string>{c.model_id, c.precision, c.hardware, c.method};
  };
  std::map<std::vector<std::string>, int> count;
  for (const ComparedCell& cell : cells) ++count[what(cell)];
  for (ComparedCell& cell : cells) {
    if (count[what(cell)] == 1) cell.variant.clear();
  }
}

Json number(std::optional<double> value) {
  return value ? Json(*value) : Json();
}

}  // namespace

const char* word(Verdict verdict) {
  switch (verdict) {
    case Verdict::faster:
      return "faster";
    case Verdict::slower:
      return "slower";
    case Verdict::same:
      return "same within noise";
    case Verdict::undecided:
      return "undecided";
    case Verdict::lost:
      return "lost";
    case Verdict::gained:
      return "gained";
    case Verdict::not_compared:
      break;
  }
  return "not compared";
}

Comparison compare_campaigns(const ReportModel& a, const std::string& name_a, const ReportModel& b,
                             const std::string& name_b, const CompareOptions& options) {
  const std::string hardware_a = hardware_text(a), hardware_b = hardware_text(b);
  if (hardware_a != hardware_b && !options.other_hardware) {
    fail(Fault::input,
         "{} ran on {} and {} on {}: times of different hardware are not compared\n"
         "Add --different-hardware to compare them all the same",
         name_a, hardware_a, name_b, hardware_b);
  }
  if (a.protocol != b.protocol && !options.other_protocol) {
    fail(Fault::input,
         "{} has the protocol \"{}\" and {} \"{}\": they do not measure the same\n"
         "Add --different-protocol to compare them all the same",
         name_a, a.protocol, name_b, b.protocol);
  }
  Comparison comparison{name_a, name_b, {}, 0, 0, {}};
  for (const auto& [name, model] : {std::pair{&name_a, &a}, std::pair{&name_b, &b}}) {
    for (const std::string& problem : model->problems) {
      comparison.problems.push_back(*name + ": " + problem);
    }
  }
  const auto arms_a = arms_by_identity(a, !options.other_hardware);
  const auto arms_b = arms_by_identity(b, !options.other_hardware);
  static const Group no_group;
  static const Arm no_arm;
  std::set<std::vector<std::string>> identities;
  std::size_t common = 0;
  for (const auto& [identity, place] : arms_a) {
    identities.insert(identity);
    common += arms_b.count(identity);
  }
  for (const auto& [identity, place] : arms_b) identities.insert(identity);
  if (common == 0) fail(Fault::input, "{} and {} have no cell in common", name_a, name_b);
  for (const auto& identity : identities) {
    const auto at_a = arms_a.find(identity), at_b = arms_b.find(identity);
    const bool in_a = at_a != arms_a.end(), in_b = at_b != arms_b.end();
    const Arm& arm_a = in_a ? *at_a->second.second : no_arm;
    const Arm& arm_b = in_b ? *at_b->second.second : no_arm;
    const Group& group = in_a ? *at_a->second.first : *at_b->second.first;
    ComparedCell cell;
    cell.model = group.model;
    cell.model_id = group.model_id;
    cell.precision = group.precision;
    cell.hardware = group.hardware;
    if (in_a && in_b && at_b->second.first->hardware != group.hardware) {
      cell.hardware += " / " + at_b->second.first->hardware;
    }
    cell.method = identity[2];
    cell.variant = identity[3];
    if (identity.size() > 5) cell.variant += " " + identity[5];
    cell.outcome_a = in_a ? arm_a.words : "absent";
    cell.outcome_b = in_b ? arm_b.words : "absent";
    cell.record_a = arm_a.record;
    cell.record_b = arm_b.record;
    cell.s_a = arm_a.s_per_step, cell.low_a = arm_a.s_low, cell.high_a = arm_a.s_high;
    cell.s_b = arm_b.s_per_step, cell.low_b = arm_b.s_low, cell.high_b = arm_b.s_high;
    cell.memory_a = arm_a.memory_mb;
    cell.memory_b = arm_b.memory_mb;
    judge(arm_a, arm_b, cell);
    if (cell.time_ratio) ++comparison.compared;
    cell.regression = options.fail_share && is_regression(cell, *options.fail_share);
    if (cell.regression) ++comparison.regressions;
    comparison.cells.push_back(std::move(cell));
  }
  name_variants(comparison.cells);
  return comparison;
}

Json to_json(const Comparison& comparison) {
  Json cells = Json::array();
  for (const ComparedCell& c : comparison.cells) {
    cells.push_back({{"model", c.model},
                     {"model_id", c.model_id},
                     {"precision", c.precision},
                     {"hardware", c.hardware},
                     {"method", c.method},
                     {"variant", c.variant},
                     {"outcome_a", c.outcome_a},
                     {"outcome_b", c.outcome_b},
                     {"record_a", c.record_a},
                     {"record_b", c.record_b},
                     {"s_per_step_a", number(c.s_a)},
                     {"s_per_step_b", number(c.s_b)},
                     {"s_per_step_min_a", number(c.low_a)},
                     {"s_per_step_max_a", number(c.high_a)},
                     {"s_per_step_min_b", number(c.low_b)},
                     {"s_per_step_max_b", number(c.high_b)},
                     {"time_ratio", number(c.time_ratio)},
                     {"time_ratio_low", number(c.time_low)},
                     {"time_ratio_high", number(c.time_high)},
                     {"memory_mb_a", number(c.memory_a)},
                     {"memory_mb_b", number(c.memory_b)},
                     {"memory_ratio", number(c.memory_ratio)},
                     {"verdict", word(c.verdict)},
                     {"regression", c.regression}});
  }
  return {{"a", comparison.name_a},
          {"b", comparison.name_b},
          {"expected", comparison.cells.size()},
          {"compared", comparison.compared},
          {"regressions", comparison.regressions},
          {"problems", comparison.problems},
          {"cells", cells}};
}

std::string compare_markdown(const Comparison& comparison) {
  std::string text = fmt::format(
      "**{}** against **{}**: {} expected, {} compared\n\n"
      "| Model | Method | Hardware | A | B | B / A | 95 % interval | Memory B / A | Verdict |\n"
      "|---|---|---|--:|--:|--:|--:|--:|---|\n",
      markdown_text(comparison.name_b), markdown_text(comparison.name_a),
      counted(comparison.cells.size(), "cell"), comparison.compared);
  for (const ComparedCell& c : comparison.cells) {
    text += fmt::format(
        "| {} {} | {} {} | {} | {} | {} | {} | {} | {} | {}{} |\n", markdown_text(c.model),
        markdown_text(c.precision), markdown_text(c.method), markdown_text(c.variant),
        markdown_text(c.hardware), c.s_a ? seconds(c.s_a) : markdown_text(c.outcome_a),
        c.s_b ? seconds(c.s_b) : markdown_text(c.outcome_b), factor(c.time_ratio),
        c.time_low ? factor(c.time_low) + " to " + factor(c.time_high) : kMissing,
        factor(c.memory_ratio), word(c.verdict), c.regression ? " (regression)" : "");
  }
  return text;
}

std::string compare_junit(const std::vector<Comparison>& comparisons) {
  std::string text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n";
  for (const Comparison& comparison : comparisons) {
    text += fmt::format("<testsuite name=\"{} against {}\" tests=\"{}\" failures=\"{}\">\n",
                        html_text(comparison.name_b), html_text(comparison.name_a),
                        comparison.cells.size(), comparison.regressions);
    for (const ComparedCell& c : comparison.cells) {
      text += fmt::format("<testcase classname=\"{} {} {}\" name=\"{} {}\">", html_text(c.model),
                          html_text(c.precision), html_text(c.hardware), html_text(c.method),
                          html_text(c.variant));
      if (c.regression) {
        text += fmt::format("<failure message=\"{}: time {}, memory {}\"/>", word(c.verdict),
                            factor(c.time_ratio), factor(c.memory_ratio));
      }
      text += "</testcase>\n";
    }
    text += "</testsuite>\n";
  }
  return text + "</testsuites>\n";
}

}  // namespace poros
