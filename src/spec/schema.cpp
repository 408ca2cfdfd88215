// SPDX-License-Identifier: Apache-2.0
#include "spec/schema.hpp"

#include <algorithm>
#include <cmath>

#include "spec/fields.hpp"
#include "spec/text_form.hpp"
#include "spec/train_config.hpp"

namespace poros {
namespace {

template <typename T>
constexpr KeyType key_type() {
  if constexpr (std::is_same_v<T, std::string>) return KeyType::text;
  if constexpr (std::is_same_v<T, std::int64_t>) return KeyType::integer;
  if constexpr (std::is_same_v<T, std::optional<std::int64_t>>) return KeyType::integer;
  if constexpr (std::is_same_v<T, double>) return KeyType::number;
  if constexpr (std::is_same_v<T, std::optional<double>>) return KeyType::number;
  if constexpr (std::is_same_v<T, bool>) return KeyType::boolean;
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return KeyType::text_list;
  if constexpr (std::is_same_v<T, std::map<std::string, std::int64_t>>) return KeyType::integer_map;
  if constexpr (std::is_same_v<T, std::map<std::string, double>>) return KeyType::number_map;
}

template <typename S>
SchemaSection make_section(const std::string& path, const std::string& text) {
  SchemaSection section{path, text, {}};
  const Json defaults = section_to_json(default_section<S>());
  for (const Field<S>& field : fields<S>()) {
    SchemaKey key{path, field.name, KeyType::text, false, field.rule, {}, field.unit, field.text};
    std::visit(
        [&](auto member) {
          using T = std::decay_t<decltype(std::declval<S>().*member)>;
          key.type = field.rule.duration ? KeyType::duration : key_type<T>();
          key.nullable = std::is_same_v<T, std::optional<std::int64_t>> ||
                         std::is_same_v<T, std::optional<double>>;
        },
        field.member);
    key.default_value = defaults[field.name];
    section.keys.push_back(std::move(key));
  }
  return section;
}

std::string number_text(double value) {
  const bool whole = std::abs(value) < 1e15 && value == std::floor(value);
  return whole ? fmt::format("{}", static_cast<std::int64_t>(value)) : fmt::format("{}", value);
}

/// "from 1 to 4096", "above 0", "" without bounds.
std::string range_text(const KeyRule& rule) {
  std::string text;
  if (rule.min && rule.max && !rule.above_min && !rule.below_max) {
    return fmt::format(" from {} to {}", number_text(*rule.min), number_text(*rule.max));
  }
  if (rule.min) {
    text += fmt::format(" {} {}", rule.above_min ? "above" : "of at least", number_text(*rule.min));
  }
  if (rule.max) {
    text += fmt::format("{} {} {}", rule.min ? " and" : "", rule.below_max ? "below" : "at most",
                        number_text(*rule.max));
  }
  return text;
}

std::optional<std::string> number_complaint(const KeyRule& rule, double value) {
  if (!std::isfinite(value)) return "the number is not finite";
  const bool low = rule.min && (rule.above_min ? value <= *rule.min : value < *rule.min);
  const bool high = rule.max && (rule.below_max ? value >= *rule.max : value > *rule.max);
  if (low || high) return fmt::format("{} is out of range", number_text(value));
  return std::nullopt;
}

std::optional<std::string> text_complaint(const KeyRule& rule, const std::string& value) {
  if (!rule.choices.empty()) {
    if (std::ranges::find(rule.choices, value) != rule.choices.end()) return std::nullopt;
    return fmt::format("\"{}\" is not a known value", printable(value));
  }
  return form_complaint(rule.form, value);
}

std::optional<std::string> list_complaint(const KeyRule& rule, const Json& list) {
  if (list.empty() && rule.keyword.empty()) return "the list is empty";
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_string()) return fmt::format("item {} is not text", i + 1);
    const auto value = list[i].get<std::string>();
    if (auto wrong = text_complaint(rule, value)) return wrong;
    if (std::find(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(i), list[i]) !=
        list.begin() + static_cast<std::ptrdiff_t>(i)) {
      return fmt::format("\"{}\" stands twice in the list", value);
    }
  }
  return std::nullopt;
}

std::optional<std::string> map_complaint(const KeyRule& rule, const Json& map, bool integers) {
  for (const auto& [name, value] : map.items()) {
    if (auto wrong = form_complaint(rule.form, name)) return wrong;
    if (integers ? !value.is_number_integer() : !value.is_number()) {
      return fmt::format("\"{}\" has no {}", printable(name), integers ? "integer" : "number");
    }
    if (auto wrong = number_complaint(rule, value.get<double>())) {
      return fmt::format("\"{}\": {}", printable(name), *wrong);
    }
  }
  return std::nullopt;
}

std::optional<std::string> wrong_type(const Json& value) {
  return fmt::format("a JSON {} has the wrong type", value.type_name());
}

}  // namespace

std::string SchemaKey::path() const {
  return section.empty() ? name : section + "." + name;
}

const SchemaKey* SchemaSection::find(const std::string& name) const {
  const auto found = std::ranges::find(keys, name, &SchemaKey::name);
  return found == keys.end() ? nullptr : &*found;
}

Json SchemaSection::defaults() const {
  Json json = Json::object();
  for (const SchemaKey& key : keys) json[key.name] = key.default_value;
  return json;
}

const std::vector<SchemaSection>& schema_sections() {
  static const std::vector<SchemaSection> sections = {
      make_section<BenchmarkSpec>("", "At the top of the file."),
      make_section<HardwareSpec>("hardware", "The machine that the cells are for."),
      make_section<ModelSpec>("models[]", "A list with one mapping a model; at least one."),
      make_section<TrainingSpec>("training", "What every arm trains."),
      make_section<DatasetSpec>("training.dataset",
                                "A text alone is the source; `path` may be written for `source`."),
      make_section<LoraSpec>("lora", "The adapters, the same for every arm."),
      make_section<PorosSpec>("poros", "This project's trainer: the arms poros and resident."),
      make_section<PeerSpec>("peers.<method>",
                             "The other arms: peft, unsloth and accelerate_offload."),
      make_section<TimeoutSpec>("timeouts",
                                "When a process is ended: 90s, 30m, 1.5h; a bare number is "
                                "seconds."),
      make_section<ReportingSpec>("reporting", "What a campaign writes beside its receipts."),
  };
  return sections;
}

const SchemaSection& train_section() {
  static const SchemaSection section =
      make_section<TrainConfig>("train", "At the top of the file, beside `model`.");
  return section;
}

const SchemaSection& schema_section(const std::string& path) {
  if (path == "train") return train_section();
  for (const SchemaSection& section : schema_sections()) {
    if (section.path == path) return section;
  }
  fail(Fault::run, "the schema has no section \"{}\"", path);
}

const SchemaKey& schema_key(const std::string& path) {
  for (const SchemaSection& section : schema_sections()) {
    for (const SchemaKey& key : section.keys) {
      if (key.path() == path) return key;
    }
  }
  fail(Fault::run, "the schema has no key \"{}\"", path);
}

std::string expectation(const SchemaKey& key) {
  const KeyRule& rule = key.rule;
  std::string text;
  switch (key.type) {
    case KeyType::text:
      text = rule.choices.size() == 1 ? "\"" + rule.choices[0] + "\""
             : rule.choices.empty()   ? form_expectation(rule.form)
                                      : fmt::format("one of: {}", fmt::join(rule.choices, ", "));
      break;
    case KeyType::integer:
      text = "an integer" + range_text(rule);
      break;
    case KeyType::number:
      text = "a number" + range_text(rule);
      break;
    case KeyType::boolean:
      text = "true or false";
      break;
    case KeyType::duration:
      text = "a duration above 0, such as 90s, 30m or 1.5h";
      break;
    case KeyType::text_list:
      text = rule.choices.empty() ? fmt::format("a list of {}", form_expectation(rule.form))
                                  : fmt::format("a list of: {}", fmt::join(rule.choices, ", "));
      if (!rule.keyword.empty()) text += ", or " + rule.keyword;
      break;
    case KeyType::integer_map:
      text = "a mapping of layer names to integers" + range_text(rule);
      break;
    case KeyType::number_map:
      text = "a mapping of layer names to numbers" + range_text(rule);
      break;
  }
  return text;
}

std::optional<std::string> complaint(const SchemaKey& key, const Json& value) {
  if (value.is_null()) {
    if (key.nullable) return std::nullopt;
    return "there is no value";
  }
  const KeyRule& rule = key.rule;
  switch (key.type) {
    case KeyType::text:
      if (!value.is_string()) return wrong_type(value);
      if (value == key.default_value) return std::nullopt;
      return text_complaint(rule, value.get<std::string>());
    case KeyType::integer:
      if (!value.is_number_integer()) return wrong_type(value);
      return number_complaint(rule, value.get<double>());
    case KeyType::number:
    case KeyType::duration:
      if (!value.is_number()) return wrong_type(value);
      return number_complaint(rule, value.get<double>());
    case KeyType::boolean:
      return value.is_boolean() ? std::nullopt : wrong_type(value);
    case KeyType::text_list:
      return value.is_array() ? list_complaint(rule, value) : wrong_type(value);
    case KeyType::integer_map:
    case KeyType::number_map:
      if (!value.is_object()) return wrong_type(value);
      return map_complaint(rule, value, key.type == KeyType::integer_map);
  }
  return wrong_type(value);
}

}  // namespace poros
