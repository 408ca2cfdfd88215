// SPDX-License-Identifier: Apache-2.0
#include "spec/spec_json.hpp"

#include <algorithm>

#include "base/sha256.hpp"
#include "spec/fields.hpp"
#include "spec/matrix_reader.hpp"
#include "spec/section_json.hpp"

namespace poros {
namespace {

void keep_counting(Json& json, const std::string& section) {
  for (const SchemaKey& key : schema_section(section).keys) {
    if (!key.rule.counts) json.erase(key.name);
  }
}

/// What two runs must agree on to be of one campaign.
Json counting(Json spec) {
  keep_counting(spec, "");
  if (spec["hardware"].is_array()) {
    for (Json& type : spec["hardware"]) keep_counting(type, "hardware");
  } else {
    keep_counting(spec["hardware"], "hardware");
  }
  keep_counting(spec["training"], "training");
  for (Json& model : spec["models"]) keep_counting(model, "models[]");
  spec.erase("timeouts");
  spec.erase("reporting");
  return spec;
}

void differences(const Json* before, const Json* after, const std::string& path,
                 std::vector<SpecDifference>& found) {
  if (before != nullptr && after != nullptr && *before == *after) return;
  const auto both = [&](auto test) {
    return before != nullptr && after != nullptr && test(*before) && test(*after);
  };
  if (both([](const Json& json) { return json.is_object(); })) {
    Json names = *before;
    names.update(*after);
    for (const auto& [name, ignored] : names.items()) {
      const auto child = [&](const Json& json) {
        return json.contains(name) ? &json[name] : nullptr;
      };
      differences(child(*before), child(*after), path.empty() ? name : path + "." + name, found);
    }
    return;
  }
  const auto is_mappings = [](const Json& json) {
    return json.is_array() && std::ranges::all_of(json, &Json::is_object);
  };
  if (both(is_mappings)) {
    for (std::size_t i = 0; i < std::max(before->size(), after->size()); ++i) {
      differences(i < before->size() ? &(*before)[i] : nullptr,
                  i < after->size() ? &(*after)[i] : nullptr, fmt::format("{}[{}]", path, i),
                  found);
    }
    return;
  }
  const auto text = [](const Json* json) { return json == nullptr ? "--" : dump_json(*json); };
  found.push_back({path, text(before), text(after)});
}

}  // namespace

Json spec_to_json(const BenchmarkSpec& spec) {
  Json json = section_to_json(spec);
  json["hardware"] = section_to_json(spec.hardware);
  if (!spec.hardware_types.empty()) {
    json["hardware"] = Json::array();
    for (const HardwareSpec& type : spec.hardware_types) {
      json["hardware"].push_back(section_to_json(type));
    }
  }
  json["models"] = Json::array();
  for (const ModelSpec& model : spec.models) json["models"].push_back(section_to_json(model));
  json["training"] = training_to_json(spec.training);
  json["lora"] = section_to_json(spec.lora);
  json["poros"] = section_to_json(spec.poros);
  json["peers"] = Json::object();
  for (const auto& [method, peer] : spec.peers) json["peers"][method] = section_to_json(peer);
  json["timeouts"] = section_to_json(spec.timeouts);
  json["reporting"] = section_to_json(spec.reporting);
  add_matrix(json, spec.matrix);
  return json;
}

BenchmarkSpec spec_from_json(const Json& json, const std::string& origin) {
  BenchmarkSpec spec = strict_section<BenchmarkSpec>(
      json, "", origin,
      {"hardware", "models", "training", "lora", "poros", "peers", "timeouts", "reporting", "sweep",
       "include", "overrides", "exclude"});
  spec.matrix = matrix_from_json(json, origin);
  const auto below = [&](const char* name) {
    return json.contains(name) ? json[name] : Json::object();
  };
  if (const Json types = below("hardware"); types.is_array()) {
    if (types.empty()) fail(Fault::input, "{}: \"hardware\" is an empty list", origin);
    for (const Json& type : types) {
      spec.hardware_types.push_back(strict_section<HardwareSpec>(type, "hardware", origin));
    }
    spec.hardware = spec.hardware_types.front();
    if (spec.hardware_types.size() == 1) spec.hardware_types.clear();
  } else {
    spec.hardware = strict_section<HardwareSpec>(types, "hardware", origin);
  }
  spec.training = training_from_json(below("training"), origin);
  spec.lora = strict_section<LoraSpec>(below("lora"), "lora", origin);
  spec.poros = strict_section<PorosSpec>(below("poros"), "poros", origin);
  spec.timeouts = strict_section<TimeoutSpec>(below("timeouts"), "timeouts", origin);
  spec.reporting = strict_section<ReportingSpec>(below("reporting"), "reporting", origin);
  if (!json.contains("models") || !json["models"].is_array() || json["models"].empty()) {
    fail(Fault::input, "{}: \"models\" is not a list with at least one model", origin);
  }
  for (const Json& model : json["models"]) {
    spec.models.push_back(strict_section<ModelSpec>(model, "models[]", origin));
  }
  const Json peers = below("peers");
  if (!peers.is_object()) fail(Fault::input, "{}: \"peers\" is not an object", origin);
  for (const auto& [method, peer] : peers.items()) {
    if (std::ranges::find(peer_methods(), method) == peer_methods().end()) {
      fail(Fault::input, "{}: unknown key \"peers.{}\"", origin, method);
    }
    spec.peers[method] = strict_section<PeerSpec>(peer, "peers.<method>", origin);
  }
  return spec;
}

std::string spec_sha256(const Json& spec) {
  return sha256_hex(dump_json(counting(spec)));
}

std::string spec_sha256(const BenchmarkSpec& spec) {
  return spec_sha256(spec_to_json(spec));
}

std::vector<SpecDifference> spec_differences(const Json& before, const Json& after) {
  std::vector<SpecDifference> found;
  // A key that was added since has its default in an older spec.json.
  const auto complete = [](const Json& json) {
    try {
      return counting(spec_to_json(spec_from_json(json, "spec.json")));
    } catch (const Error&) {  // it has keys that this program does not know: they differ
      return counting(json);
    }
  };
  const Json a = complete(before), b = complete(after);
  differences(&a, &b, "", found);
  return found;
}

}  // namespace poros
