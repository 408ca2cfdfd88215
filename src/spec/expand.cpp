// SPDX-License-Identifier: Apache-2.0
#include "spec/expand.hpp"

#include <map>
#include <utility>

#include "base/error.hpp"

namespace poros {

std::vector<CellSpec> expand(const BenchmarkSpec& spec) {
  std::vector<CellSpec> cells;
  std::map<std::string, std::size_t> seen;
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
                        .peer = {}};
          if (const auto peer = spec.peers.find(method); peer != spec.peers.end()) {
            cell.peer = peer->second;
          }
          const bool regroup = std::exchange(cell.peer.best_shape, false) &&
                               spec.training.gradient_accumulation_steps > 1;
          const auto [first, is_new] = seen.emplace(cell_key(cell), cells.size());
          if (!is_new) {
            fail(Fault::input, "{}: {} of {} in {} is asked for twice; expected each cell once",
                 spec.file, method, model.model_id, precision);
          }
          cells.push_back(cell);
          if (!regroup) continue;
          // The same rows a step in one micro-batch: the runner regroups them, so that the cell
          // belongs to the same comparison group and reads the same token file.
          cell.peer.best_shape = true;
          seen.emplace(cell_key(cell), cells.size());
          cells.push_back(std::move(cell));
        }
      }
    }
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
