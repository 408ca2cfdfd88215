// SPDX-License-Identifier: Apache-2.0
#include "campaign/plan.hpp"

#include <algorithm>

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
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const CellSpec& cell = cells[i];
    plan.cells.push_back({cell, cell_key(cell), group_key(cell), files[i], model_slug(cell.model)});
    const std::string& group = plan.cells.back().group;
    auto found = std::find_if(plan.groups.begin(), plan.groups.end(),
                              [&](const ComparisonGroup& known) { return known.key == group; });
    if (found == plan.groups.end()) found = plan.groups.insert(found, {group, {}});
    found->cells.push_back(i);
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
