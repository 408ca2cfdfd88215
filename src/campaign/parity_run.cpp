// SPDX-License-Identifier: Apache-2.0
#include "campaign/parity_run.hpp"

#include <algorithm>
#include <cmath>

namespace poros {
namespace {

/// A number for JSON: infinity (one side finite, the other not) can't stand there and is left out;
/// bitwise_exact and `differences` tell.
Json finite_or_null(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

Json difference_json(const DumpDifference& difference) {
  return {{"max_abs", finite_or_null(difference.max_abs)},
          {"tensor", difference.tensor},
          {"index", difference.index},
          {"a", finite_or_null(difference.a)},
          {"b", finite_or_null(difference.b)},
          {"elements", difference.elements},
          {"unequal", difference.unequal}};
}

/// Largest difference over some kinds: 0 for equal hashes, null where nothing was measured.
Json max_difference(const ParityEvidence& evidence, std::initializer_list<const char*> kinds) {
  if (evidence.hashes && evidence.hashes->equal) return 0.0;
  Json largest = nullptr;
  for (const char* kind : kinds) {
    const auto found = evidence.dumps.find(kind);
    if (found == evidence.dumps.end()) continue;
    const double value = found->second.max_abs;
    if (!std::isfinite(value)) return nullptr;
    largest = largest.is_null() ? value : std::max(largest.get<double>(), value);
  }
  return largest;
}

}  // namespace

Json parity_record(const ArtifactContext& context, const ParityEvidence& evidence) {
  const CellSpec& spec = evidence.a->spec;
  Json record{{"v", 1},
              {"group_key", evidence.a->group},
              {"spec_id", context.spec_id},
              {"spec_sha256", context.spec_sha256},
              {"run_id", context.run_id},
              {"method_a", evidence.a->spec.method},
              {"method_b", evidence.b->spec.method},
              {"cell_key_a", evidence.a->key},
              {"cell_key_b", evidence.b->key},
              {"model_id", spec.model.model_id},
              {"display_name",
               spec.model.display_name.empty() ? evidence.a->model : spec.model.display_name},
              {"arch", evidence.a->model},
              {"precision", spec.precision},
              {"device", spec.device},
              {"hardware", spec.hardware.gpu_name},
              {"status", "ok"},
              {"reason", nullptr},
              {"error_message", nullptr},
              {"bitwise_exact", nullptr},
              {"steps", nullptr},
              {"hashes", nullptr},
              {"first_difference_step", nullptr},
              {"first_difference_kind", nullptr},
              {"first_difference_tensor", nullptr},
              {"timestamp", nullptr}};
  Json passes = Json::array();
  for (const RecordedPass& pass : evidence.passes) {
    passes.push_back({{"cell_key", pass.record.cell_key},
                      {"pass", pass.record.pass},
                      {"attempt", pass.record.attempt},
                      {"artifact_path", pass.path},
                      {"artifact_sha256", pass.sha256}});
    record["timestamp"] = pass.record.finished_at;
    if (const auto name = json_find<std::string>(pass.record.device, "name", "record")) {
      record["hardware"] = *name;
    }
  }
  record["passes"] = passes;
  record["parity_loss_max_diff"] = max_difference(evidence, {"loss"});
  record["parity_gradient_max_diff"] = max_difference(evidence, {"gradient"});
  record["parity_grad_norm_max_diff"] = max_difference(evidence, {"grad_norm"});
  record["parity_moment_max_diff"] = max_difference(evidence, {"exp_avg", "exp_avg_sq"});
  record["parity_weight_max_diff"] = max_difference(evidence, {"weight"});
  Json differences = Json::object();
  for (const auto& [kind, difference] : evidence.dumps) {
    differences[kind] = difference_json(difference);
  }
  record["differences"] = differences;
  if (evidence.hashes) {
    const HashComparison& hashes = *evidence.hashes;
    record["bitwise_exact"] = hashes.equal;
    record["steps"] = hashes.steps;
    record["hashes"] = hashes.hashes;
    if (hashes.first) {
      record["first_difference_step"] = hashes.first->step;
      record["first_difference_kind"] = hashes.first->kind;
      if (!hashes.first->tensor.empty()) record["first_difference_tensor"] = hashes.first->tensor;
    }
  }
  if (!evidence.failure.empty()) {
    record["status"] = "error";
    record["reason"] = evidence.hashes ? "no_dump" : "not_measured";
    record["error_message"] = evidence.failure;
  }
  return record;
}

std::string parity_line(const Json& record) {
  const auto text = [&](const char* key) {
    return json_find<std::string>(record, key, "parity").value_or("");
  };
  const std::string who =
      fmt::format("parity {} {} against {}", text("arch"), text("method_a"), text("method_b"));
  const auto exact = json_find<bool>(record, "bitwise_exact", "parity");
  if (!exact) return fmt::format("{}: not measured: {}", who, text("error_message"));
  const auto steps = json_get<std::int64_t>(record, "steps", "parity");
  if (*exact) {
    return fmt::format("{}: bitwise equal over {} steps ({} hashes)", who, steps,
                       json_get<std::int64_t>(record, "hashes", "parity"));
  }
  std::string line = fmt::format("{}: DIFFERENT from step {} on, first in {}", who,
                                 json_get<std::int64_t>(record, "first_difference_step", "parity"),
                                 text("first_difference_kind"));
  if (!text("first_difference_tensor").empty()) line += " " + text("first_difference_tensor");
  if (const auto weight = json_find<double>(record, "parity_weight_max_diff", "parity")) {
    line += fmt::format("; max|delta| of weights {:.3e}", *weight);
  }
  return line;
}

}  // namespace poros
