// SPDX-License-Identifier: Apache-2.0
#include "receipts/pass_record.hpp"

#include <algorithm>
#include <array>

#include "receipts/json_fields.hpp"

namespace poros {
namespace {

template <typename Record, typename Visit>
void visit_fields(Record& r, Visit&& visit) {
  visit("purpose", r.purpose);
  visit("cell_key", r.cell_key);
  visit("method", r.method);
  visit("pass", r.pass);
  visit("attempt", r.attempt);
  visit("status", r.status);
  visit("reason", r.reason);
  visit("error_message", r.error_message);
  visit("flags", r.flags);
  visit("started_at", r.started_at);
  visit("finished_at", r.finished_at);
  visit("s_per_step", r.s_per_step);
  visit("load_s", r.load_s);
  visit("vram_peak_mb", r.vram_peak_mb);
  visit("vram_reserved_peak_mb", r.vram_reserved_peak_mb);
  visit("vram_load_peak_mb", r.vram_load_peak_mb);
  visit("host_rss_peak_mb", r.host_rss_peak_mb);
  visit("pinned_mb", r.pinned_mb);
  visit("planned_peak_mb", r.planned_peak_mb);
  visit("trainable_params", r.trainable_params);
  visit("token_sha256", r.token_sha256);
  visit("adapter_sha256", r.adapter_sha256);
  visit("weights", r.weights);
  visit("base_bytes", r.base_bytes);
  visit("device", r.device);
  visit("versions", r.versions);
  visit("arm", r.arm);
  visit("driver", r.driver);
}

std::vector<StepHashes> hashes_from_json(const Json& json, const std::string& origin) {
  std::vector<StepHashes> hashes;
  if (!json.is_array()) fail(Fault::input, "{}: key \"hashes\" must be a list", origin);
  for (const Json& item : json) {
    const std::string where = origin + ": hashes[" + std::to_string(hashes.size()) + "]";
    StepHashes step{json_get<std::string>(item, "loss", where),
                    json_get<std::string>(item, "grad_norm", where),
                    {}};
    const auto tensors = item.find("tensors");
    if (tensors == item.end() || !tensors->is_object()) {
      fail(Fault::input, "{}: key \"tensors\" must be an object", where);
    }
    for (const auto& [kind, names] : tensors->items()) {
      if (!names.is_object()) fail(Fault::input, "{}: \"{}\" must be an object", where, kind);
      auto& of_kind = step.tensors[kind];
      for (const auto& [name, hash] : names.items()) {
        if (!hash.is_string()) fail(Fault::input, "{}: \"{}\" must be a string", where, name);
        of_kind.emplace(name, hash.template get<std::string>());
      }
    }
    hashes.push_back(std::move(step));
  }
  return hashes;
}

void check(const PassRecord& record, const std::string& origin) {
  static constexpr std::array kStatus{"ok", "oom", "error", "skipped"};
  if (std::find(kStatus.begin(), kStatus.end(), record.status) == kStatus.end()) {
    fail(Fault::input, "{}: status \"{}\" is none of ok, oom, error, skipped", origin,
         record.status);
  }
  if (record.purpose != "timed" && record.purpose != "parity") {
    fail(Fault::input, "{}: purpose \"{}\" is neither timed nor parity", origin, record.purpose);
  }
  if (record.pass < 0 || record.attempt < 1) {
    fail(Fault::input, "{}: pass {} or attempt {} is out of range", origin, record.pass,
         record.attempt);
  }
  std::size_t length = 0;
  for (const StepColumn& column : step_columns()) {
    const std::size_t size = (record.steps.*column.values).size();
    if (size == 0) continue;
    if (length != 0 && size != length) {
      fail(Fault::input, "{}: steps.{} has {} values, another series has {}", origin, column.name,
           size, length);
    }
    length = size;
  }
}

}  // namespace

std::span<const StepColumn> step_columns() {
  static constexpr std::array kColumns{
      StepColumn{"loss", "nat", &StepSeries::loss},
      StepColumn{"grad_norm", "1", &StepSeries::grad_norm},
      StepColumn{"learning_rate", "1", &StepSeries::learning_rate},
      StepColumn{"s_per_step", "s", &StepSeries::s_per_step},
      StepColumn{"allocated_mb", "MiB", &StepSeries::allocated_mb},
      StepColumn{"reserved_mb", "MiB", &StepSeries::reserved_mb},
      StepColumn{"host_rss_mb", "MiB", &StepSeries::host_rss_mb},
      StepColumn{"supervised_tokens", "token", &StepSeries::supervised_tokens},
  };
  return kColumns;
}

Json to_json(const PassRecord& record) {
  Json json = Json::object();
  json["v"] = kPassRecordVersion;
  visit_fields(record, FieldWriter{json});
  Json steps = Json::object();
  for (const StepColumn& column : step_columns()) {
    steps[column.name] = record.steps.*column.values;
  }
  json["steps"] = std::move(steps);
  Json hashes = Json::array();
  for (const StepHashes& step : record.hashes) {
    hashes.push_back(
        {{"loss", step.loss}, {"grad_norm", step.grad_norm}, {"tensors", step.tensors}});
  }
  json["hashes"] = std::move(hashes);
  return json;
}

PassRecord pass_record_from_json(const Json& json, const std::string& origin) {
  if (!json.is_object()) fail(Fault::input, "{}: a pass record must be a JSON object", origin);
  const auto version = json_find<int>(json, "v", origin).value_or(kPassRecordVersion);
  if (version != kPassRecordVersion) {
    fail(Fault::input, "{}: pass record version {}; this program reads version {}", origin, version,
         kPassRecordVersion);
  }
  for (const char* key : {"cell_key", "method", "status"}) {
    (void)json_get<std::string>(json, key, origin);  // says so when it is missing
  }
  PassRecord record;
  visit_fields(record, FieldReader{json, origin});
  if (const auto steps = json.find("steps"); steps != json.end() && !steps->is_null()) {
    const std::string where = origin + ": steps";
    const FieldReader read{*steps, where};
    for (const StepColumn& column : step_columns()) read(column.name, record.steps.*column.values);
  }
  if (const auto hashes = json.find("hashes"); hashes != json.end() && !hashes->is_null()) {
    record.hashes = hashes_from_json(*hashes, origin);
  }
  check(record, origin);
  return record;
}

}  // namespace poros
