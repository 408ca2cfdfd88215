// SPDX-License-Identifier: Apache-2.0
// One list of fields serves both directions: a record type has a template visit_fields(record,
// visit) which calls visit("name", member) for each member; FieldWriter and FieldReader are the two
// visitors. So a field can't be written under one name and read under another.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.hpp"

namespace poros {

/// Writes members into a JSON object; a missing optional becomes null.
struct FieldWriter {
  Json& out;

  template <typename T>
  void operator()(const char* name, const T& value) const {
    out[name] = value;
  }
  template <typename T>
  void operator()(const char* name, const std::optional<T>& value) const {
    out[name] = value ? Json(*value) : Json(nullptr);
  }
};

/// Reads members from a JSON object; absent and null leave the member as it is.
/// @throws Error(Fault::input) naming origin and key where the type is another.
struct FieldReader {
  const Json& in;
  const std::string& origin;

  template <typename T>
  void operator()(const char* name, T& value) const {
    if (auto found = json_find<T>(in, name, origin)) value = std::move(*found);
  }
  template <typename T>
  void operator()(const char* name, std::optional<T>& value) const {
    if (auto found = json_find<T>(in, name, origin)) value = std::move(found);
  }
  void operator()(const char* name, std::vector<double>& value) const {
    read_array(
        name, value, [](const Json& item) { return item.is_number(); }, "numbers");
  }
  void operator()(const char* name, std::vector<std::string>& value) const {
    read_array(
        name, value, [](const Json& item) { return item.is_string(); }, "strings");
  }
  void operator()(const char* name, std::map<std::string, double>& value) const {
    const Json* found = find(name);
    if (found == nullptr) return;
    if (!found->is_object()) fail(Fault::input, "{}: key \"{}\" must be an object", origin, name);
    value.clear();
    for (const auto& [key, item] : found->items()) {
      if (!item.is_number()) {
        fail(Fault::input, "{}: key \"{}\": \"{}\" must be a number", origin, name, key);
      }
      value.emplace(key, item.get<double>());
    }
  }
  /// A nested value; must be of the same kind (object or array) as the member's default.
  void operator()(const char* name, Json& value) const {
    const Json* found = find(name);
    if (found == nullptr) return;
    if (found->type() != value.type()) {
      fail(Fault::input, "{}: key \"{}\" must be an {}", origin, name, value.type_name());
    }
    value = *found;
  }

 private:
  [[nodiscard]] const Json* find(const char* name) const {
    if (!in.is_object()) fail(Fault::input, "{}: must be a JSON object", origin);
    const auto found = in.find(name);
    return found == in.end() || found->is_null() ? nullptr : &*found;
  }
  template <typename T, typename Check>
  void read_array(const char* name, std::vector<T>& value, Check&& check, const char* kind) const {
    const Json* found = find(name);
    if (found == nullptr) return;
    if (!found->is_array()) {
      fail(Fault::input, "{}: key \"{}\" must be a list of {}", origin, name, kind);
    }
    value.clear();
    value.reserve(found->size());
    for (const Json& item : *found) {
      if (!check(item)) {
        fail(Fault::input, "{}: key \"{}\" must be a list of {}", origin, name, kind);
      }
      value.push_back(item.get<T>());
    }
  }
};

}  // namespace poros
