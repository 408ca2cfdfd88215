// SPDX-License-Identifier: Apache-2.0
#include "campaign/plan.hpp"

#include <algorithm>
#include <map>

#include "spec/expand.hpp"
#include "spec/spec_json.hpp"

namespace poros {

const PlannedCell* CampaignPlan::find(const ComparisonGroup& group,
                                      const std::string& method) const {
  for (const std::size_t index : group.cells) {
    if (cells[index].spec.method == method) return &cells[index];
  }
  return nullptr;
}

CampaignPlan make_plan(BenchmarkSpec spec) {
  CampaignPlan plan;
  plan.spec_json = spec_to_json(spec);
  plan.spec_sha256 = spec_sha256(plan.spec_json);
  const std::vector<CellSpec> cells = expand(spec);
  const std::vector<std::string> files = artifact_names(cells);
  std::map<std::string, std::size_t> index_of;  // groups by key
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const CellSpec& cell = cells[i];
    plan.cells.push_back({cell, cell_key(cell), group_key(cell), files[i], model_slug(cell.model)});
    const std::string& group = plan.cells.back().group;
    const auto [known, is_new] = index_of.emplace(group, plan.groups.size());
    if (is_new) plan.groups.push_back({group, {}});
    plan.groups[known->second].cells.push_back(i);
  }
  plan.spec = std::move(spec);
  return plan;
}

std::vector<PassSlot> interleaved_passes(const ComparisonGroup& group, std::int64_t n_passes) {
  std::vector<PassSlot> order;
  for (std::int64_t pass = 0; pass < n_passes; ++pass) {
    for (const std::size_t cell : group.cells) order.push_back({cell, pass});
  }
  return order;
}

}  // namespace poros
