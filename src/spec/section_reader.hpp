// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "base/json.hpp"
#include "spec/schema.hpp"
#include "spec/yaml_tree.hpp"

namespace poros {

/// The value of a key in a mapping; nullptr when it is absent.
[[nodiscard]] const YamlNode* find_entry(const YamlNode& map, const std::string& name);

/// Reads mappings of a YAML tree by the schema table into JSON and collects what is wrong with
/// them, so that a person sees all faults of a file at once.
class SectionReader {
 public:
  explicit SectionReader(std::string origin) : origin_(std::move(origin)) {}

  /// Notes a fault. The message says what is wrong, what was expected and perhaps what was meant.
  void add(Place place, std::string message) { issues_.push_back({place, std::move(message)}); }
  [[nodiscard]] bool clean() const { return issues_.empty(); }

  /// @throws Error(Fault::input) with all faults noted so far, in the order of the file; if any.
  void stop_on_issues();

  /// Checks the keys of a mapping and gives their values, defaults included.
  /// @param section path in the schema, "models[]"
  /// @param shown path in messages, "models[0]"
  Json read_section(const YamlNode& node, const std::string& section, const std::string& shown);

  /// The value of one key, or null after a fault.
  Json read_value(const SchemaKey& key, const YamlNode& node, const std::string& path);

  /// Notes a fault and returns true when a list or mapping is longer than any honest spec's.
  bool too_many(std::size_t count, Place place, const std::string& path);

 private:
  struct Issue {
    Place place;
    std::string message;
  };

  void unknown_key(const YamlNode& key, const std::string& section, const std::string& shown);
  void wrong_value(Place place, const SchemaKey& key, const std::string& path,
                   const std::string& wrong, const std::string& hint, const std::string& given);
  Json read_list(const SchemaKey& key, const YamlNode& node, const std::string& path);
  Json read_map(const SchemaKey& key, const YamlNode& node, const std::string& path);

  std::string origin_;
  std::vector<Issue> issues_;
};

}  // namespace poros
