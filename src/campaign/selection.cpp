// SPDX-License-Identifier: Apache-2.0
#include "campaign/selection.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <string_view>

#include "base/error.hpp"
#include "spec/gpu_name.hpp"

namespace poros {
namespace {

constexpr std::array<std::string_view, 5> kNames{"method", "model", "precision", "gpu", "key"};

struct Condition {
  std::string name, value, text;  // text: as it was given
};

Condition parse_condition(const std::string& text) {
  const auto equals = text.find('=');
  if (equals == std::string::npos) {
    const bool hex = text.size() >= 4 && text.find_first_not_of("0123456789abcdef") == text.npos;
    if (hex) return {"key", text, text};
  } else {
    Condition condition{text.substr(0, equals), text.substr(equals + 1), text};
    const bool known = std::ranges::find(kNames, condition.name) != kNames.end();
    if (known && !condition.value.empty()) return condition;
  }
  fail(Fault::usage,
       "--only {}: expected one of {}=VALUE, or the first characters (4 or more) of a cell key",
       text, fmt::join(kNames, "=VALUE, "));
}

bool meets(const PlannedCell& cell, const Condition& condition) {
  const auto& [name, value, text] = condition;
  if (name == "method") return cell.spec.method == value;
  if (name == "precision") return cell.spec.precision == value;
  if (name == "gpu") return is_same_gpu(value, cell.spec.hardware.gpu_name);
  if (name == "key") return cell.key.starts_with(value);
  const ModelSpec& model = cell.spec.model;
  return value == cell.model || value == model.model_id || value == model.display_name;
}

}  // namespace

ShardPart parse_shard_part(const std::string& text) {
  ShardPart part;
  const char* end = text.data() + text.size();
  const auto index = std::from_chars(text.data(), end, part.index);
  bool good = index.ec == std::errc() && index.ptr != end && *index.ptr == '/';
  if (good) {
    const auto count = std::from_chars(index.ptr + 1, end, part.count);
    good = count.ec == std::errc() && count.ptr == end;
  }
  if (!good || part.index < 0 || part.count < 1 || part.index >= part.count) {
    fail(Fault::usage, "--shard {}: expected I/N with I from 0 to N-1, such as 0/4", text);
  }
  return part;
}

Selection::Selection(const CampaignPlan& plan, const SelectionOptions& options) {
  if (options.only.empty() && options.part.count == 1) return;
  cells_.assign(plan.cells.size(), true);
  std::map<std::string, std::vector<Condition>> conditions;  // by name: any of them
  for (const std::string& text : options.only) {
    Condition condition = parse_condition(text);
    const bool any = std::ranges::any_of(
        plan.cells, [&](const PlannedCell& cell) { return meets(cell, condition); });
    if (!any) {
      fail(Fault::usage, "--only {}: no cell of {} is that; `poros bench plan` lists them", text,
           plan.spec.file);
    }
    conditions[condition.name].push_back(std::move(condition));
  }
  for (std::size_t i = 0; i < plan.cells.size(); ++i) {
    cells_[i] = std::ranges::all_of(conditions, [&](const auto& alternatives) {
      return std::ranges::any_of(alternatives.second, [&](const Condition& condition) {
        return meets(plan.cells[i], condition);
      });
    });
  }
  if (!options.only.empty() && std::ranges::find(cells_, true) == cells_.end()) {
    fail(Fault::usage, "--only: no cell meets all of the conditions {}",
         fmt::join(options.only, ", "));
  }
  // By the plan alone, so that every start and every shard divides alike.
  std::map<std::string, std::int64_t> seen;  // groups of a GPU type
  for (const ComparisonGroup& group : plan.groups) {
    const std::string& gpu = plan.cells[group.cells.front()].spec.hardware.gpu_name;
    if (seen[gpu]++ % options.part.count == options.part.index) continue;
    for (const std::size_t cell : group.cells) cells_[cell] = false;
  }
}

bool Selection::has_group(const ComparisonGroup& group) const {
  return std::ranges::any_of(group.cells, [&](std::size_t cell) { return has_cell(cell); });
}

}  // namespace poros
