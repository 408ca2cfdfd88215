// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "base/json.hpp"
#include "spec/schema.hpp"
#include "spec/yaml_tree.hpp"

namespace poros {

/// A value of the spec as JSON, or what is wrong with it.
struct ScalarResult {
  Json value;
  std::string wrong;  // empty: `value` holds
  std::string hint;   // "write 0.5", may be empty
};

/// Reads a scalar as a value of that type. Stricter than YAML: plain decimal numbers only, true and
/// false only, and text that YAML could take for something else must stand in quotes.
/// @param type text, integer, number, boolean or duration (to seconds)
/// @param choices words that are text here even where YAML could read a boolean ("off")
[[nodiscard]] ScalarResult read_scalar(const YamlNode& node, KeyType type,
                                       const std::vector<std::string>& choices);

}  // namespace poros
