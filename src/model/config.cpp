// SPDX-License-Identifier: Apache-2.0
#include "model/config.hpp"

#include <cmath>
#include <utility>

#include "base/error.hpp"
#include "base/files.hpp"

namespace poros {
namespace fs = std::filesystem;

ModelConfig::ModelConfig(Json json, std::string origin)
    : json_(std::move(json)), origin_(std::move(origin)) {
  if (!json_.is_object()) fail(Fault::input, "{}: not a JSON object", origin_);
}

std::string ModelConfig::model_type() const {
  return json_get<std::string>(json_, "model_type", origin_);
}

std::optional<std::int64_t> ModelConfig::find_size(const char* key, std::int64_t limit) const {
  const auto value = json_find<std::int64_t>(json_, key, origin_);
  if (value && (*value < 1 || *value > limit)) {
    fail(Fault::input, "{}: key \"{}\" is {}, expected 1 to {}", origin_, key, *value, limit);
  }
  return value;
}

std::int64_t ModelConfig::size(const char* key, std::int64_t limit,
                               std::optional<std::int64_t> otherwise) const {
  const auto value = find_size(key, limit);
  if (value) return *value;
  if (!otherwise) fail(Fault::input, "{}: key \"{}\" is missing", origin_, key);
  return *otherwise;
}

std::optional<double> ModelConfig::find_number(const char* key) const {
  const auto value = json_find<double>(json_, key, origin_);
  if (value && !std::isfinite(*value)) {
    fail(Fault::input, "{}: key \"{}\" is not finite", origin_, key);
  }
  return value;
}

double ModelConfig::number(const char* key, std::optional<double> otherwise) const {
  const auto value = find_number(key);
  if (value) return *value;
  if (!otherwise) fail(Fault::input, "{}: key \"{}\" is missing", origin_, key);
  return *otherwise;
}

bool ModelConfig::flag(const char* key, bool otherwise) const {
  return json_find<bool>(json_, key, origin_).value_or(otherwise);
}

std::string ModelConfig::text(const char* key, const std::string& otherwise) const {
  return json_find<std::string>(json_, key, origin_).value_or(otherwise);
}

std::vector<bool> ModelConfig::sliding_layers(std::int64_t layers) const {
  const auto list = json_.find("layer_types");
  if (list == json_.end() || list->is_null()) return {};
  if (!list->is_array() || static_cast<std::int64_t>(list->size()) != layers) {
    fail(Fault::input, "{}: layer_types must be a list of {} names", origin_, layers);
  }
  std::vector<bool> sliding;
  for (const Json& entry : *list) {
    if (entry != "sliding_attention" && entry != "full_attention") {
      fail(Fault::input,
           "{}: layer_types has {}; known are \"full_attention\" and \"sliding_attention\"",
           origin_, entry.dump());
    }
    sliding.push_back(entry == "sliding_attention");
  }
  return sliding;
}

Json ModelConfig::rope(const std::string& part, double default_theta) const {
  Json parameters = Json::object();
  const auto take = [&](const Json& from, const char* name) {
    if (!from.is_object()) fail(Fault::input, "{}: {} is not an object", origin_, name);
    for (const auto& [key, value] : from.items()) {
      if (!value.is_null()) parameters[key] = value;
    }
  };
  const auto scaling = json_.find("rope_scaling");
  const auto whole = json_.find("rope_parameters");
  if (whole != json_.end() && !whole->is_null()) {
    if (!whole->is_object()) fail(Fault::input, "{}: rope_parameters is not an object", origin_);
    const auto inner = part.empty() ? whole->end() : whole->find(part);
    if (inner != whole->end()) {
      take(*inner, "rope_parameters");
    } else {
      take(*whole, "rope_parameters");
    }
  } else if (scaling != json_.end() && !scaling->is_null() && part != "sliding_attention") {
    take(*scaling, "rope_scaling");
  }
  // Older files say "type", and the oldest longrope files "su" (the same formula) or, in phi3,
  // "yarn".
  if (!parameters.contains("rope_type")) {
    parameters["rope_type"] = parameters.contains("type") ? parameters["type"] : Json("default");
  }
  if (parameters["rope_type"] == "su") parameters["rope_type"] = "longrope";
  if (!parameters.contains("rope_theta")) {
    const char* key = part == "sliding_attention" ? "rope_local_base_freq" : "rope_theta";
    parameters["rope_theta"] = number(key, default_theta);
  }
  for (const char* key : {"partial_rotary_factor", "original_max_position_embeddings"}) {
    if (!parameters.contains(key) && json_.contains(key) && !json_[key].is_null()) {
      parameters[key] = json_[key];
    }
  }
  return parameters;
}

std::optional<ModelConfig> ModelConfig::nested(const char* key) const {
  const auto inner = json_.find(key);
  if (inner == json_.end() || inner->is_null()) return std::nullopt;
  return ModelConfig(*inner, origin_ + ": " + key);
}

ModelConfig read_model_config(const fs::path& path) {
  const fs::path file = fs::is_directory(path) ? path / "config.json" : path;
  JsonLimits limits;
  limits.max_bytes = std::size_t{4} << 20;
  limits.max_depth = 32;
  return {parse_json(read_file(file, limits.max_bytes), file.string(), limits), file.string()};
}

}  // namespace poros
