// SPDX-License-Identifier: Apache-2.0
#include "spec/section_reader.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "spec/scalar.hpp"
#include "spec/text_form.hpp"

namespace poros {
namespace {

constexpr std::size_t kMaxIssues = 20;
constexpr std::size_t kMaxItems = 1024;  // of a list or mapping: no honest spec has more

/// The names that may stand in a mapping: its keys and the mappings below it.
std::vector<std::string> names_in(const std::string& section) {
  std::vector<std::string> names;
  for (const SchemaKey& key : schema_section(section).keys) {
    if (!key.rule.later) names.push_back(key.name);
  }
  if (section.empty()) {
    for (const char* name : {"hardware", "models", "training", "lora", "poros", "peers", "timeouts",
                             "reporting", "sweep", "include", "overrides", "exclude"}) {
      names.emplace_back(name);
    }
  }
  if (section == "train") {
    for (const char* name : {"model", "training", "lora", "poros"}) names.emplace_back(name);
  }
  if (section == "training") names.emplace_back("dataset");
  if (section == "training.dataset") names.emplace_back("path");
  return names;
}

/// Where a key of that name stands elsewhere in the schema: "training.seq_len", or empty.
std::string elsewhere(const std::string& name) {
  if (name == "dataset") return "training.dataset";
  for (const SchemaSection& section : schema_sections()) {
    const SchemaKey* key = section.find(name);
    if (key != nullptr && !key->rule.later) return key->path();
  }
  return {};
}

}  // namespace

const YamlNode* find_entry(const YamlNode& map, const std::string& name) {
  for (const auto& [key, node] : map.entries) {
    if (key.text == name) return &node;
  }
  return nullptr;
}

void SectionReader::stop_on_issues() {
  if (issues_.empty()) return;
  std::ranges::stable_sort(issues_, {}, &Issue::place);
  std::string text;
  for (std::size_t i = 0; i < std::min(issues_.size(), kMaxIssues); ++i) {
    const Issue& issue = issues_[i];
    text += fmt::format("{}{}:{}:{}: {}", i == 0 ? "" : "\n", origin_, issue.place.line,
                        issue.place.column, issue.message);
  }
  if (issues_.size() > kMaxIssues) {
    text += fmt::format("\nand {} faults more", issues_.size() - kMaxIssues);
  }
  throw Error(Fault::input, text);
}

void SectionReader::unknown_key(const YamlNode& key, const std::string& section,
                                const std::string& shown) {
  const std::string path = section.empty() ? key.text : section + "." + key.text;
  if (const RefusedKey* refused = find_refused_key(path)) {
    add(key.place, fmt::format("key \"{}\" {}", shown, refused->reason));
    return;
  }
  const std::vector<std::string> names = names_in(section);
  std::string message = fmt::format("unknown key \"{}\"; expected one of: {}", printable(shown),
                                    fmt::join(names, ", "));
  std::string near = nearest(key.text, names);
  if (const std::string other = elsewhere(key.text); !other.empty()) near = other;
  if (!near.empty()) message += fmt::format("; did you mean \"{}\"?", near);
  add(key.place, message);
}

Json SectionReader::read_section(const YamlNode& node, const std::string& section,
                                 const std::string& shown) {
  const SchemaSection& schema = schema_section(section);
  Json json = schema.defaults();
  if (node.kind != YamlNode::Kind::map) {
    add(node.place, fmt::format("{}: {}; expected a mapping with keys such as \"{}\"", shown,
                                node.kind == YamlNode::Kind::null   ? "there is no value"
                                : node.kind == YamlNode::Kind::list ? "a list stands here"
                                                                    : "a single value stands here",
                                schema.keys.front().name));
    return json;
  }
  for (const auto& [key, value] : node.entries) {
    const std::string path = shown.empty() ? key.text : shown + "." + key.text;
    const SchemaKey* known = schema.find(key.text);
    if (known == nullptr) {
      const auto names = names_in(section);
      if (std::ranges::find(names, key.text) == names.end()) unknown_key(key, section, path);
    } else if (known->rule.later) {
      add(key.place, fmt::format("key \"{}\" is not available yet; leave it out", path));
    } else {
      json[key.text] = read_value(*known, value, path);
    }
  }
  for (const SchemaKey& key : schema.keys) {
    if (key.rule.required && find_entry(node, key.name) == nullptr) {
      add(node.place, fmt::format("{}key \"{}\" is missing; expected {}",
                                  shown.empty() ? "" : shown + ": ", key.name, expectation(key)));
    }
  }
  return json;
}

void SectionReader::wrong_value(Place place, const SchemaKey& key, const std::string& path,
                                const std::string& wrong, const std::string& hint,
                                const std::string& given) {
  std::string message = fmt::format("{}: {}; expected {}", path, wrong, expectation(key));
  if (!hint.empty()) {
    message += "; " + hint;
  } else if (const auto near = nearest(given, key.rule.choices); !near.empty() && near != given) {
    message += fmt::format("; did you mean \"{}\"?", near);
  } else if ((key.rule.form == TextForm::model || key.rule.form == TextForm::dataset) &&
             !given.empty() && given[0] != '~') {
    message += fmt::format("; did you mean \"./{}\"?", printable(given));
  }
  add(place, message);
}

Json SectionReader::read_value(const SchemaKey& key, const YamlNode& node,
                               const std::string& path) {
  switch (key.type) {
    case KeyType::text_list:
      return read_list(key, node, path);
    case KeyType::integer_map:
    case KeyType::number_map:
      return read_map(key, node, path);
    default:
      break;
  }
  const bool null =
      node.kind == YamlNode::Kind::null || (node.kind == YamlNode::Kind::scalar && !node.quoted &&
                                            (node.text == "null" || node.text == "~"));
  if (null && key.nullable) return nullptr;
  ScalarResult result = read_scalar(node, key.type, key.rule.choices);
  if (result.wrong.empty()) {
    if (auto wrong = complaint(key, result.value)) result.wrong = *wrong;
  }
  if (!result.wrong.empty()) {
    wrong_value(node.place, key, path, result.wrong, result.hint,
                node.kind == YamlNode::Kind::scalar ? node.text : "");
  }
  return result.value;
}

Json SectionReader::read_list(const SchemaKey& key, const YamlNode& node, const std::string& path) {
  Json list = Json::array();
  if (!key.rule.keyword.empty()) {
    const bool null = node.kind == YamlNode::Kind::null || (node.text == "null" && !node.quoted) ||
                      node.text == "~";
    if (null || node.text == key.rule.keyword) return list;
  }
  if (node.kind != YamlNode::Kind::list) {
    const char* what = node.kind == YamlNode::Kind::map    ? "a mapping stands here"
                       : node.kind == YamlNode::Kind::null ? "there is no value"
                                                           : "a single value stands here";
    std::string hint;
    if (node.kind == YamlNode::Kind::scalar) hint = fmt::format("write [{}]", printable(node.text));
    wrong_value(node.place, key, path, what, hint, "");
    return list;
  }
  if (node.items.empty()) wrong_value(node.place, key, path, "the list is empty", "", "");
  if (too_many(node.items.size(), node.place, path)) return list;
  for (const YamlNode& item : node.items) {
    ScalarResult result = read_scalar(item, KeyType::text, key.rule.choices);
    if (result.wrong.empty()) {
      list.push_back(result.value);  // with those before it, so that a second one is seen
      if (auto wrong = complaint(key, list)) {
        result.wrong = *wrong;
        list.erase(list.size() - 1);
      }
    }
    if (result.wrong.empty()) continue;
    wrong_value(item.place, key, path, result.wrong, result.hint,
                item.kind == YamlNode::Kind::scalar ? item.text : "");
  }
  return list;
}

bool SectionReader::too_many(std::size_t count, Place place, const std::string& path) {
  if (count <= kMaxItems) return false;
  add(place, fmt::format("{}: {} entries; expected at most {}", path, count, kMaxItems));
  return true;
}

Json SectionReader::read_map(const SchemaKey& key, const YamlNode& node, const std::string& path) {
  Json map = Json::object();
  if (node.kind != YamlNode::Kind::map) {
    wrong_value(node.place, key, path, "no mapping stands here", "", "");
    return map;
  }
  if (too_many(node.entries.size(), node.place, path)) return map;
  const KeyType type = key.type == KeyType::integer_map ? KeyType::integer : KeyType::number;
  for (const auto& [name, value] : node.entries) {
    const ScalarResult result = read_scalar(value, type, {});
    if (!result.wrong.empty()) {
      wrong_value(value.place, key, path + "." + printable(name.text), result.wrong, result.hint,
                  "");
      continue;
    }
    Json one = Json::object();
    one[name.text] = result.value;
    if (auto wrong = complaint(key, one)) wrong_value(value.place, key, path, *wrong, "", "");
    map[name.text] = result.value;
  }
  return map;
}

}  // namespace poros
