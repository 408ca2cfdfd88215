// SPDX-License-Identifier: Apache-2.0
#include "spec/matrix_reader.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "spec/matrix.hpp"
#include "spec/text_form.hpp"

namespace poros {
namespace {

const std::vector<std::string>& plain_names() {
  static const std::vector<std::string> names{"method", "model", "precision", "gpu"};
  return names;
}

/// Reads the rules of one list.
class RuleReader {
 public:
  RuleReader(SectionReader& reader, std::string list) : reader_(reader), list_(std::move(list)) {}

  [[nodiscard]] std::vector<MatrixRule> rules(const YamlNode& node) {
    std::vector<MatrixRule> rules;
    for_items(node, "a list of {match: ..., set: ...}",
              [&](const YamlNode& item, const std::string& path) {
                MatrixRule rule;
                for (const auto& [key, value] : item.entries) {
                  if (key.text == "match") {
                    rule.match = settings(value, path + ".match", true);
                  } else if (key.text == "set") {
                    rule.set = settings(value, path + ".set", false);
                  } else {
                    reader_.add(key.place,
                                fmt::format("unknown key \"{}.{}\"; expected one of: match, set",
                                            path, printable(key.text)));
                  }
                }
                const YamlNode* set = find_entry(item, "set");
                if (set == nullptr || (set->kind == YamlNode::Kind::map && set->entries.empty())) {
                  reader_.add(item.place,
                              path +
                                  ": there is nothing below \"set\"; expected a mapping such "
                                  "as {training.batch_size: 1}");
                }
                rules.push_back(std::move(rule));
              });
    return rules;
  }

  [[nodiscard]] std::vector<CellMatch> matches(const YamlNode& node) {
    std::vector<CellMatch> list;
    for_items(node, "a list of mappings such as {method: resident, model: Qwen2.5-72B}",
              [&](const YamlNode& item, const std::string& path) {
                list.push_back(settings(item, path, true));
                if (item.entries.empty()) {
                  reader_.add(item.place, path + ": is empty and would match every cell");
                }
              });
    return list;
  }

 private:
  template <typename Read>
  void for_items(const YamlNode& node, const char* expected, const Read& read) {
    if (node.kind != YamlNode::Kind::list || node.items.empty()) {
      reader_.add(node.place, fmt::format("{}: expected {}", list_, expected));
      return;
    }
    if (reader_.too_many(node.items.size(), node.place, list_)) return;
    for (std::size_t i = 0; i < node.items.size(); ++i) {
      const std::string path = fmt::format("{}[{}]", list_, i);
      if (node.items[i].kind == YamlNode::Kind::map) {
        read(node.items[i], path);
      } else {
        reader_.add(node.items[i].place, fmt::format("{}: no mapping stands here", path));
      }
    }
  }

  /// A mapping of settable keys; `match` allows the plain names too.
  std::map<std::string, Json> settings(const YamlNode& node, const std::string& path, bool match) {
    std::map<std::string, Json> result;
    if (node.kind != YamlNode::Kind::map) {
      reader_.add(node.place, path + ": expected a mapping");
      return result;
    }
    for (const auto& [key, value] : node.entries) {
      const bool plain = std::ranges::find(plain_names(), key.text) != plain_names().end();
      if (match && plain) {
        if (value.kind == YamlNode::Kind::scalar && !value.text.empty()) {
          result[key.text] = value.text;
        } else {
          reader_.add(value.place, fmt::format("{}.{}: expected a name", path, key.text));
        }
      } else if (const SchemaKey* known = settable_key(key.text)) {
        result[key.text] = reader_.read_value(*known, value, path + "." + key.text);
      } else {
        unknown(key, path, match);
      }
    }
    return result;
  }

  void unknown(const YamlNode& key, const std::string& path, bool match) {
    std::vector<std::string> names = settable_keys();
    if (match) names.insert(names.begin(), plain_names().begin(), plain_names().end());
    std::string message = fmt::format(
        "{}: \"{}\" is no key that a cell can be {} by; expected {}a key such as "
        "training.seq_len or poros.block_size",
        path, printable(key.text), match ? "chosen" : "set",
        match ? "method, model, precision, gpu, or " : "");
    if (const auto near = nearest(key.text, names); !near.empty()) {
      message += fmt::format("; did you mean \"{}\"?", near);
    }
    reader_.add(key.place, message);
  }

  SectionReader& reader_;
  std::string list_;
};

std::map<std::string, std::vector<Json>> read_sweep(const YamlNode& node, SectionReader& reader) {
  std::map<std::string, std::vector<Json>> sweep;
  if (node.kind != YamlNode::Kind::map || node.entries.empty()) {
    reader.add(
        node.place,
        "sweep: expected a mapping of keys to lists, such as {training.seq_len: [512, 2048]}");
    return sweep;
  }
  if (reader.too_many(node.entries.size(), node.place, "sweep")) return sweep;
  for (const auto& [key, values] : node.entries) {
    const SchemaKey* known = settable_key(key.text);
    if (known == nullptr) {
      std::string message =
          fmt::format("sweep: \"{}\" is no key that a cell can be set by", printable(key.text));
      const auto near = nearest(key.text, settable_keys());
      message += near.empty() ? "; expected one such as training.seq_len or poros.block_size"
                              : fmt::format("; did you mean \"{}\"?", near);
      reader.add(key.place, message);
      continue;
    }
    const std::string path = "sweep." + key.text;
    if (values.kind != YamlNode::Kind::list || values.items.empty()) {
      reader.add(values.place, path + ": expected a list of values");
      continue;
    }
    if (reader.too_many(values.items.size(), values.place, path)) continue;
    std::vector<Json>& list = sweep[key.text];
    for (const YamlNode& item : values.items) {
      const Json value = reader.read_value(*known, item, path);
      if (value.is_null() && !known->nullable) continue;  // told already
      if (std::ranges::find(list, value) != list.end()) {
        reader.add(item.place, fmt::format("{}: {} stands there twice", path, dump_json(value)));
      }
      list.push_back(value);
    }
  }
  return sweep;
}

Json rule_json(const MatrixRule& rule) {
  return {{"match", rule.match}, {"set", rule.set}};
}

std::map<std::string, Json> members(const Json& json, const std::string& origin) {
  if (!json.is_object()) fail(Fault::input, "{}: a rule of the matrix is not an object", origin);
  return json.get<std::map<std::string, Json>>();
}

}  // namespace

MatrixSpec read_matrix(const YamlNode& root, SectionReader& reader) {
  MatrixSpec matrix;
  if (const YamlNode* node = find_entry(root, "sweep")) matrix.sweep = read_sweep(*node, reader);
  if (const YamlNode* node = find_entry(root, "include")) {
    matrix.include = RuleReader(reader, "include").rules(*node);
  }
  if (const YamlNode* node = find_entry(root, "overrides")) {
    matrix.overrides = RuleReader(reader, "overrides").rules(*node);
  }
  if (const YamlNode* node = find_entry(root, "exclude")) {
    matrix.exclude = RuleReader(reader, "exclude").matches(*node);
  }
  return matrix;
}

void add_matrix(Json& spec, const MatrixSpec& matrix) {
  if (!matrix.sweep.empty()) spec["sweep"] = matrix.sweep;
  const auto add_rules = [&](const char* name, const std::vector<MatrixRule>& rules) {
    for (const MatrixRule& rule : rules) spec[name].push_back(rule_json(rule));
  };
  add_rules("include", matrix.include);
  add_rules("overrides", matrix.overrides);
  if (!matrix.exclude.empty()) spec["exclude"] = matrix.exclude;
}

MatrixSpec matrix_from_json(const Json& spec, const std::string& origin) {
  MatrixSpec matrix;
  if (spec.contains("sweep")) {
    for (const auto& [path, values] : members(spec.at("sweep"), origin)) {
      if (!values.is_array()) fail(Fault::input, "{}: sweep.{} is not a list", origin, path);
      matrix.sweep[path] = values.get<std::vector<Json>>();
    }
  }
  const auto rules = [&](const char* name) {
    std::vector<MatrixRule> list;
    for (const Json& rule : spec.value(name, Json::array())) {
      list.push_back({members(json_get<Json>(rule, "match", origin), origin),
                      members(json_get<Json>(rule, "set", origin), origin)});
    }
    return list;
  };
  matrix.include = rules("include");
  matrix.overrides = rules("overrides");
  for (const Json& match : spec.value("exclude", Json::array())) {
    matrix.exclude.push_back(members(match, origin));
  }
  return matrix;
}

}  // namespace poros
