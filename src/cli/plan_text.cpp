// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_text.hpp"

#include <map>
#include <set>
#include <tuple>

#include "campaign/predict.hpp"
#include "cli/output.hpp"
#include "spec/expand.hpp"
#include "spec/spec_json.hpp"

namespace poros {
namespace {

constexpr std::size_t kMostListed = 60;  // that are listed one by one
constexpr const char* kMissing = "--";

Json estimate_json(const CellPrediction& prediction) {
  return {{"vram_bytes", json_or_null(prediction.vram_bytes)},
          {"host_bytes", json_or_null(prediction.host_bytes)},
          {"s_per_step", json_or_null(prediction.s_per_step)},
          {"s_per_pass", json_or_null(prediction.s_per_pass)},
          {"fits", prediction.fits ? Json(*prediction.fits) : Json(nullptr)},
          {"why", prediction.why.empty() ? Json(nullptr) : Json(prediction.why)}};
}

std::string gigabytes(const Json& bytes) {
  return bytes.is_null() ? kMissing : fmt::format("{:.2f}", bytes.get<double>() / 1e9);
}

std::string seconds(const Json& value) {
  return value.is_null() ? kMissing : fmt::format("{:.3g}", value.get<double>());
}

std::string fits_text(const Json& fits) {
  return fits.is_null() ? kMissing : fits.get<bool>() ? "yes" : "no";
}

std::string plural(std::size_t count, const char* word, const char* ending = "s") {
  return fmt::format("{} {}{}", count, word, count == 1 ? "" : ending);
}

std::string place_of(const Json& cell) {
  const std::string gpu = cell["gpu_name"].get<std::string>();
  if (cell["device"] != "cpu") return gpu;
  return gpu == "unknown" ? "cpu" : gpu + " (cpu)";
}

std::string cells_text(const Json& plan) {
  bool variants = false;
  for (const Json& cell : plan["cells"]) {
    variants = variants || !cell["variant"].get<std::string>().empty();
  }
  TextTable table{{"key", "method", "model", "precision", "on", "steps"}, {}, "lllllr"};
  if (variants) {
    table.header.emplace_back("variant");
    table.numbers += "l";
  }
  for (const char* name : {"device GB", "fits", "host GB", "s/step"})
    table.header.emplace_back(name);
  table.numbers += "rlrr";
  for (const Json& cell : plan["cells"]) {
    const Json& estimate = cell["estimate"];
    std::vector<std::string> row{cell["key"].get<std::string>().substr(0, 8),
                                 cell["method"],
                                 cell["display_name"],
                                 cell["precision"],
                                 place_of(cell),
                                 std::to_string(cell["steps"].get<std::int64_t>())};
    if (variants) row.push_back(cell["variant"]);
    row.insert(row.end(), {gigabytes(estimate["vram_bytes"]), fits_text(estimate["fits"]),
                           gigabytes(estimate["host_bytes"]), seconds(estimate["s_per_step"])});
    table.rows.push_back(std::move(row));
  }
  return table.text();
}

/// A large matrix: a line for each GPU type, model and method.
std::string summary_text(const Json& plan) {
  struct Line {
    std::size_t cells = 0, fitting = 0, unknown = 0;
    double vram = 0, pass_s = 0;
    bool timed = true;
  };
  using Name = std::tuple<std::string, std::string, std::string>;
  std::vector<std::pair<Name, Line>> lines;  // in the plan's order
  std::map<Name, std::size_t> index;
  for (const Json& cell : plan["cells"]) {
    const Name own{place_of(cell), cell["display_name"].get<std::string>(),
                   cell["method"].get<std::string>()};
    const auto [known, is_new] = index.emplace(own, lines.size());
    if (is_new) lines.emplace_back(own, Line{});
    Line& line = lines[known->second].second;
    const Json& estimate = cell["estimate"];
    ++line.cells;
    if (estimate["fits"].is_null()) ++line.unknown;
    if (estimate["fits"] == true) ++line.fitting;
    if (estimate["vram_bytes"].is_number()) {
      line.vram = std::max(line.vram, estimate["vram_bytes"].get<double>());
    }
    line.timed = line.timed && estimate["s_per_pass"].is_number();
    if (line.timed) line.pass_s += estimate["s_per_pass"].get<double>();
  }
  TextTable table{
      {"on", "model", "method", "cells", "fit", "device GB, most", "hours"}, {}, "lllrrrr"};
  const auto passes = plan["n_passes"].get<double>();
  for (const auto& [name, line] : lines) {
    const auto& [gpu, model, method] = name;
    table.rows.push_back(
        {gpu, model, method, std::to_string(line.cells),
         line.unknown == line.cells ? kMissing : std::to_string(line.fitting),
         line.vram > 0 ? fmt::format("{:.2f}", line.vram / 1e9) : kMissing,
         line.timed ? fmt::format("{:.2f}", line.pass_s * passes / 3600) : kMissing});
  }
  return table.text();
}

std::string totals_text(const Json& plan) {
  std::string text;
  for (const auto& [gpu, hours] : plan["gpu_hours"].items()) {
    if (hours.is_null()) continue;
    text += fmt::format("{}: {:.1f} hours of one GPU\n", gpu, hours.get<double>());
  }
  if (text.empty()) return text;
  return "\n" + text +
         "Device memory of poros and resident is planned; all other figures are estimates.\n";
}

std::string reasons_text(const Json& plan) {
  std::set<std::string> reasons;
  for (const Json& cell : plan["cells"]) {
    const Json& why = cell["estimate"]["why"];
    if (why.is_string() && cell["estimate"]["fits"].is_null()) {
      reasons.insert(why.get<std::string>());
    }
  }
  std::string text;
  for (const std::string& reason : reasons) text += "no estimate: " + reason + "\n";
  return text;
}

/// What tells the cell from others of its method and model.
std::string variant_of(const CellSpec& cell) {
  if (!cell.peer.best_shape) return cell.variant;
  return cell.variant + (cell.variant.empty() ? "" : ", ") + "best shape";
}

}  // namespace

Json plan_json(const BenchmarkSpec& spec) {
  const std::vector<CellSpec> cells = expand(spec);
  const std::vector<std::string> files = artifact_names(cells);
  Json list = Json::array(), hours = Json::object();
  std::set<std::string> groups;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const CellSpec& cell = cells[i];
    groups.insert(group_key(cell));
    hours[cell.hardware.gpu_name] = nullptr;
    list.push_back({{"key", cell_key(cell)},
                    {"group", group_key(cell)},
                    {"method", cell.method},
                    {"model_id", cell.model.model_id},
                    {"display_name", cell.model.display_name},
                    {"variant", variant_of(cell)},
                    {"precision", cell.precision},
                    {"device", cell.device},
                    {"gpu_name", cell.hardware.gpu_name},
                    {"steps", cell.training.steps},
                    {"file", files[i]},
                    {"estimate", estimate_json(predict(cell))}});
  }
  const TrainingSpec& training = spec.training;
  for (const auto& [gpu, ignored] : hours.items()) {
    hours[gpu] = json_or_null(predicted_hours(cells, training.n_passes, gpu));
  }
  return {{"spec_id", spec.spec_id},
          {"spec_sha256", spec_sha256(spec)},
          {"output_dir", spec.reporting.output_dir},
          {"n_passes", training.n_passes},
          {"tokens_per_step",
           training.batch_size * training.gradient_accumulation_steps * training.seq_len},
          {"groups", groups.size()},
          {"gpu_hours", hours},
          {"cells", list}};
}

std::string plan_text(const BenchmarkSpec& spec, bool all) {
  const Json plan = plan_json(spec);
  const std::size_t cells = plan["cells"].size();
  const bool summed_up = cells > kMostListed && !all;
  const auto passes = plan["n_passes"].get<std::size_t>();
  return (summed_up ? summary_text(plan) : cells_text(plan)) +
         fmt::format("\n{} in {}, {} each; campaign folder {}{}\n", plural(cells, "cell"),
                     plural(plan["groups"].get<std::size_t>(), "comparison group"),
                     plural(passes, "pass", "es"), spec.reporting.output_dir,
                     summed_up ? "; --all lists the cells" : "") +
         totals_text(plan) + reasons_text(plan);
}

}  // namespace poros
