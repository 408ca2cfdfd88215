// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/error.hpp"

namespace poros {

/// JSON value with keys in sorted order, so that equal values have equal text.
using Json = nlohmann::json;

struct JsonLimits {
  std::size_t max_bytes = std::size_t{256} << 20;
  int max_depth = 64;
};

/// Parses JSON text. Refuses what the library would let pass: duplicate keys, depth over the limit,
/// text after the value, oversize. `origin` (a path) begins each error message.
/// @throws Error(Fault::input) with origin and byte offset.
[[nodiscard]] Json parse_json(std::string_view text, const std::string& origin,
                              const JsonLimits& limits = {});

/// Text of a value; `indent` < 0 gives one line. Bytes that are not UTF-8 are replaced by U+FFFD.
/// @throws Error(Fault::run) where a number is not finite: a receipt never turns NaN into null.
[[nodiscard]] std::string dump_json(const Json& value, int indent = -1);

/// Reads object[key] as T. @throws Error(Fault::input) naming origin and key when it is missing, of
/// another type or out of T's range.
template <typename T>
[[nodiscard]] T json_get(const Json& object, const char* key, const std::string& origin) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  if (!object.is_object() || found == object.end()) {
    fail(Fault::input, "{}: key \"{}\" is missing", origin, key);
  }
  const Json& value = *found;
  bool fits = true;
  if constexpr (std::is_same_v<T, bool>) {
    fits = value.is_boolean();
  } else if constexpr (std::is_integral_v<T>) {
    fits = value.is_number_unsigned()
               ? std::in_range<T>(value.get<std::uint64_t>())
               : (value.is_number_integer() && std::in_range<T>(value.get<std::int64_t>()));
  } else if constexpr (std::is_floating_point_v<T>) {
    fits = value.is_number();
  } else if constexpr (std::is_same_v<T, std::string>) {
    fits = value.is_string();
  }
  if (!fits) fail(Fault::input, "{}: key \"{}\" has the wrong type or range", origin, key);
  try {
    return value.get<T>();
  } catch (const nlohmann::json::exception& error) {
    fail(Fault::input, "{}: key \"{}\": {}", origin, key, error.what());
  }
}

/// Like json_get, but absent and null give nullopt.
template <typename T>
[[nodiscard]] std::optional<T> json_find(const Json& object, const char* key,
                                         const std::string& origin) {
  if (!object.is_object()) return std::nullopt;
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return std::nullopt;
  return json_get<T>(object, key, origin);
}

/// A number that may be missing: missing is null in JSON, never 0.
[[nodiscard]] inline Json json_or_null(const std::optional<double>& value) {
  return value ? Json(*value) : Json(nullptr);
}

}  // namespace poros
