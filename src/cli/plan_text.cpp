// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_text.hpp"

#include <set>

#include "cli/output.hpp"
#include "spec/expand.hpp"
#include "spec/spec_json.hpp"

namespace poros {

Json plan_json(const BenchmarkSpec& spec) {
  const std::vector<CellSpec> cells = expand(spec);
  const std::vector<std::string> files = artifact_names(cells);
  Json list = Json::array();
  std::set<std::string> groups;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const CellSpec& cell = cells[i];
    groups.insert(group_key(cell));
    list.push_back({{"key", cell_key(cell)},
                    {"group", group_key(cell)},
                    {"method", cell.method},
                    {"model_id", cell.model.model_id},
                    {"display_name", cell.model.display_name},
                    {"precision", cell.precision},
                    {"device", cell.device},
                    {"gpu_name", cell.hardware.gpu_name},
                    {"steps", cell.training.steps},
                    {"file", files[i]}});
  }
  const TrainingSpec& training = spec.training;
  return {{"spec_id", spec.spec_id},
          {"spec_sha256", spec_sha256(spec)},
          {"output_dir", spec.reporting.output_dir},
          {"n_passes", training.n_passes},
          {"tokens_per_step",
           training.batch_size * training.gradient_accumulation_steps * training.seq_len},
          {"groups", groups.size()},
          {"cells", list}};
}

std::string plan_text(const BenchmarkSpec& spec) {
  const Json plan = plan_json(spec);
  TextTable table{
      {"key", "method", "model", "precision", "device", "steps", "record"}, {}, "lllllr"};
  for (const Json& cell : plan["cells"]) {
    const bool cpu = cell["device"] == "cpu";
    table.rows.push_back({cell["key"].get<std::string>().substr(0, 8), cell["method"],
                          cell["display_name"], cell["precision"],
                          cpu ? std::string("cpu") : cell["gpu_name"].get<std::string>(),
                          std::to_string(cell["steps"].get<std::int64_t>()), cell["file"]});
  }
  const std::size_t cells = plan["cells"].size();
  const auto passes = plan["n_passes"].get<std::int64_t>();
  const auto plural = [](auto count, const char* word) {
    return fmt::format("{} {}{}", count, word, count == 1 ? "" : "s");
  };
  return table.text() +
         fmt::format(
             "\n{} in {}, {} each, {} of {} tokens a pass; campaign folder {}\n",
             plural(cells, "cell"), plural(plan["groups"].get<std::size_t>(), "comparison group"),
             plural(passes, passes == 1 ? "pass" : "passe"), plural(spec.training.steps, "step"),
             plan["tokens_per_step"].get<std::int64_t>(), spec.reporting.output_dir);
}

}  // namespace poros
