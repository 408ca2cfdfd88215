// SPDX-License-Identifier: Apache-2.0
// Ties each key of the schema to the struct member that holds it, so that reading, writing and
// comparing a section are written once for all sections.
#pragma once

#include <variant>

#include "spec/schema.hpp"
#include "spec/spec.hpp"
#include "spec/train_config.hpp"

namespace poros {

template <typename S>
using Member = std::variant<std::string S::*, std::int64_t S::*, double S::*, bool S::*,
                            std::optional<std::int64_t> S::*, std::optional<double> S::*,
                            std::vector<std::string> S::*, std::map<std::string, std::int64_t> S::*,
                            std::map<std::string, double> S::*>;

template <typename S>
struct Field {
  const char* name;
  Member<S> member;
  KeyRule rule;
  const char* unit;
  const char* text;
};

/// The table of a section; specialised in schema_table.cpp for every section of the spec.
template <typename S>
const std::vector<Field<S>>& fields();

template <>
const std::vector<Field<BenchmarkSpec>>& fields();
template <>
const std::vector<Field<HardwareSpec>>& fields();
template <>
const std::vector<Field<ModelSpec>>& fields();
template <>
const std::vector<Field<TrainingSpec>>& fields();
template <>
const std::vector<Field<DatasetSpec>>& fields();
template <>
const std::vector<Field<LoraSpec>>& fields();
template <>
const std::vector<Field<PorosSpec>>& fields();
template <>
const std::vector<Field<PeerSpec>>& fields();
template <>
const std::vector<Field<TimeoutSpec>>& fields();
template <>
const std::vector<Field<ReportingSpec>>& fields();
template <>
const std::vector<Field<TrainConfig>>& fields();

template <typename T>
Json member_json(const T& value) {
  return value;
}
template <typename T>
Json member_json(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

/// Every key of the section; not the sections below it.
template <typename S>
Json section_to_json(const S& section) {
  Json json = Json::object();
  for (const Field<S>& field : fields<S>()) {
    json[field.name] =
        std::visit([&](auto member) { return member_json(section.*member); }, field.member);
  }
  return json;
}

/// A section in which every key has its default.
template <typename S>
const S& default_section() {
  static S section;  // `const S section{}` makes GCC 12 warn of an uninitialised member
  return section;
}

/// The keys that count and are not at their default.
template <typename S>
Json section_work(const S& section) {
  const Json defaults = section_to_json(default_section<S>());
  Json work = section_to_json(section);
  for (const Field<S>& field : fields<S>()) {
    if (!field.rule.counts || work[field.name] == defaults[field.name]) work.erase(field.name);
  }
  return work;
}

template <typename T>
void set_member(T& member, const Json& value) {
  value.get_to(member);
}
template <typename T>
void set_member(std::optional<T>& member, const Json& value) {
  member = value.is_null() ? std::nullopt : std::optional<T>(value.get<T>());
}

/// Fills a section from JSON; absent keys keep their defaults, keys that the table does not hold
/// are the caller's. `path` names the section in messages. @throws Error(Fault::input).
template <typename S>
S section_from_json(const Json& json, const std::string& path, const std::string& origin) {
  if (!json.is_object()) fail(Fault::input, "{}: \"{}\" is not an object", origin, path);
  S section;
  const SchemaSection& schema = schema_section(path);
  for (const Field<S>& field : fields<S>()) {
    const auto value = json.find(field.name);
    if (value == json.end()) continue;
    const SchemaKey& key = *schema.find(field.name);
    if (const auto wrong = complaint(key, *value)) {
      fail(Fault::input, "{}: {}: {}; expected {}", origin, key.path(), *wrong, expectation(key));
    }
    std::visit([&](auto member) { set_member(section.*member, *value); }, field.member);
  }
  return section;
}

}  // namespace poros
