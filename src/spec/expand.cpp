// SPDX-License-Identifier: Apache-2.0
#include "spec/expand.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "spec/matrix.hpp"

namespace poros {
namespace {

/// hardware x models x precisions x methods.
std::vector<CellSpec> product(const BenchmarkSpec& spec) {
  std::vector<CellSpec> cells;
  std::vector<HardwareSpec> types = spec.hardware_types;
  if (types.empty()) types.push_back(spec.hardware);
  for (const HardwareSpec& hardware : types) {
    for (const ModelSpec& model : spec.models) {
      for (const std::string& precision : spec.precisions) {
        for (const std::string& method : spec.methods) {
          CellSpec cell{.method = method,
                        .model = model,
                        .precision = precision,
                        .device = spec.device,
                        .protocol = spec.protocol,
                        .hardware = hardware,
                        .training = spec.training,
                        .lora = spec.lora,
                        .poros = spec.poros,
                        .peer = {},
                        .variant = {}};
          if (const auto peer = spec.peers.find(method); peer != spec.peers.end()) {
            cell.peer = peer->second;
          }
          cells.push_back(std::move(cell));
        }
      }
    }
  }
  return cells;
}

void refuse_too_many(const BenchmarkSpec& spec, double cells) {
  if (cells <= static_cast<double>(kMostCells)) return;
  fail(Fault::input, "{}: the matrix has {:.0f} cells; expected at most {}", spec.file, cells,
       kMostCells);
}

/// Every combination of swept values, the first key changing slowest.
std::vector<CellSettings> combinations(const MatrixSpec& matrix) {
  std::vector<CellSettings> all{{}};
  for (const auto& [path, values] : matrix.sweep) {
    std::vector<CellSettings> longer;
    for (const CellSettings& settings : all) {
      for (const Json& value : values) {
        longer.push_back(settings);
        longer.back()[path] = value;
      }
    }
    all = std::move(longer);
  }
  return all;
}

void apply(CellSpec& cell, const CellSettings& settings) {
  for (const auto& [path, value] : settings) apply_setting(cell, path, value);
}

/// The settings that say something of this cell: a key of another arm doesn't.
CellSettings told(const CellSpec& cell, const CellSettings& settings) {
  CellSettings shown;
  for (const auto& [path, value] : settings) {
    CellSpec other = cell;
    if (setting_of(cell, path).is_null() && !value.is_null()) continue;
    const bool own = cell.method == "poros" || cell.method == "resident";
    if (path.starts_with("poros.") && !own) continue;
    shown[path] = value;
  }
  return shown;
}

std::vector<CellSpec> swept(const BenchmarkSpec& spec, const std::vector<CellSpec>& base) {
  double count = static_cast<double>(base.size());
  for (const auto& [path, values] : spec.matrix.sweep) count *= static_cast<double>(values.size());
  refuse_too_many(spec, count);
  std::vector<CellSpec> cells;
  std::set<std::string> seen;  // a key that an arm does not read makes no second cell of it
  const std::vector<CellSettings> all = combinations(spec.matrix);
  // Combinations outside, so that cells which differ only in method stand together.
  for (const CellSettings& settings : all) {
    for (const CellSpec& from : base) {
      CellSpec cell = from;
      apply(cell, settings);
      cell.variant = settings_text(told(cell, settings));
      if (all.size() == 1 || seen.insert(cell_key(cell)).second) cells.push_back(std::move(cell));
    }
  }
  return cells;
}

[[noreturn]] void matches_nothing(const BenchmarkSpec& spec, const char* list, std::size_t index,
                                  const CellMatch& match) {
  std::string text;
  for (const auto& [name, value] : match) {
    text += (text.empty() ? "" : ", ") + name + ": " + dump_json(value);
  }
  fail(Fault::input,
       "{}: {}[{}] matches no cell ({{{}}}); `poros bench plan` lists the cells without it",
       spec.file, list, index, text);
}

void include_more(const BenchmarkSpec& spec, const std::vector<CellSpec>& base,
                  std::vector<CellSpec>& cells) {
  for (std::size_t i = 0; i < spec.matrix.include.size(); ++i) {
    const MatrixRule& rule = spec.matrix.include[i];
    bool any = false;
    for (const CellSpec& from : base) {
      if (!matches(from, rule.match)) continue;
      any = true;
      cells.push_back(from);
      apply(cells.back(), rule.set);
      cells.back().variant = settings_text(told(from, rule.set));
    }
    if (!any) matches_nothing(spec, "include", i, rule.match);
  }
  refuse_too_many(spec, static_cast<double>(cells.size()));
}

void override_settings(const BenchmarkSpec& spec, std::vector<CellSpec>& cells) {
  for (std::size_t i = 0; i < spec.matrix.overrides.size(); ++i) {
    const MatrixRule& rule = spec.matrix.overrides[i];
    bool any = false;
    for (CellSpec& cell : cells) {
      if (!matches(cell, rule.match)) continue;
      any = true;
      apply(cell, rule.set);
    }
    if (!any) matches_nothing(spec, "overrides", i, rule.match);
  }
}

void exclude_some(const BenchmarkSpec& spec, std::vector<CellSpec>& cells) {
  std::set<std::size_t> excluded;
  for (std::size_t i = 0; i < spec.matrix.exclude.size(); ++i) {
    bool any = false;
    for (std::size_t k = 0; k < cells.size(); ++k) {
      if (!matches(cells[k], spec.matrix.exclude[i])) continue;
      any = true;
      excluded.insert(k);
    }
    if (!any) matches_nothing(spec, "exclude", i, spec.matrix.exclude[i]);
  }
  std::size_t index = 0;
  std::erase_if(cells, [&](const CellSpec&) { return excluded.contains(index++); });
  if (cells.empty()) fail(Fault::input, "{}: exclude leaves no cell", spec.file);
}

std::string described(const CellSpec& cell) {
  return fmt::format("{} of {} in {}{}", cell.method, cell.model.model_id, cell.precision,
                     cell.variant.empty() ? "" : " (" + cell.variant + ")");
}

}  // namespace

std::vector<CellSpec> expand(const BenchmarkSpec& spec) {
  const std::vector<CellSpec> base = product(spec);
  std::vector<CellSpec> all = swept(spec, base);
  include_more(spec, base, all);
  override_settings(spec, all);
  exclude_some(spec, all);
  std::vector<CellSpec> cells;
  std::map<std::string, std::string> seen;  // key -> description
  for (CellSpec& cell : all) {
    if (const std::string wrong = cell_complaint(cell); !wrong.empty()) {
      fail(Fault::input, "{}: {}: {}", spec.file, described(cell), wrong);
    }
    const bool regroup =
        std::exchange(cell.peer.best_shape, false) && cell.training.gradient_accumulation_steps > 1;
    const auto [first, is_new] = seen.emplace(cell_key(cell), described(cell));
    if (!is_new) {
      fail(Fault::input, "{}: {} is asked for twice (also as {}); expected each cell once",
           spec.file, described(cell), first->second);
    }
    cells.push_back(cell);
    if (!regroup) continue;
    // The same rows a step in one micro-batch: the runner regroups them, so that the cell
    // belongs to the same comparison group and reads the same token file.
    cell.peer.best_shape = true;
    seen.emplace(cell_key(cell), described(cell));
    cells.push_back(std::move(cell));
  }
  return cells;
}

std::vector<std::string> artifact_names(const std::vector<CellSpec>& cells) {
  std::vector<std::string> stems;
  std::map<std::string, int> uses;
  for (const CellSpec& cell : cells) {
    stems.push_back(fmt::format("{}_{}_{}", cell.method, model_slug(cell.model), cell.precision));
    ++uses[stems.back()];
  }
  std::vector<std::string> names;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const bool shared = uses[stems[i]] > 1;
    names.push_back(stems[i] + (shared ? "_" + cell_key(cells[i]).substr(0, 8) : "") + ".json");
  }
  return names;
}

}  // namespace poros
