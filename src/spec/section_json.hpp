// SPDX-License-Identifier: Apache-2.0
// Sections of spec and cell as JSON objects, beyond what fields.hpp gives: strictness, and training
// with the dataset below it.
#pragma once

#include <algorithm>
#include <vector>

#include "spec/fields.hpp"

namespace poros {

/// section_from_json that refuses keys which are neither in the table nor in `more`.
template <typename S>
S strict_section(const Json& json, const std::string& path, const std::string& origin,
                 const std::vector<std::string>& more = {}) {
  S section = section_from_json<S>(json, path, origin);
  for (const auto& [name, ignored] : json.items()) {
    const bool known = schema_section(path).find(name) != nullptr ||
                       std::find(more.begin(), more.end(), name) != more.end();
    if (!known) {
      fail(Fault::input, "{}: unknown key \"{}{}{}\"", origin, path, path.empty() ? "" : ".", name);
    }
  }
  return section;
}

[[nodiscard]] inline Json training_to_json(const TrainingSpec& training) {
  Json json = section_to_json(training);
  json["dataset"] = section_to_json(training.dataset);
  return json;
}

[[nodiscard]] inline TrainingSpec training_from_json(const Json& json, const std::string& origin) {
  auto training = strict_section<TrainingSpec>(json, "training", origin, {"dataset"});
  if (json.contains("dataset")) {
    training.dataset = strict_section<DatasetSpec>(json["dataset"], "training.dataset", origin);
  }
  return training;
}

}  // namespace poros
