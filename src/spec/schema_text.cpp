// SPDX-License-Identifier: Apache-2.0
// The schema for people (Markdown) and for programs (JSON Schema).
#include <algorithm>

#include "spec/schema.hpp"
#include "spec/text_form.hpp"

namespace poros {
namespace {

constexpr const char* kHead = R"(# The spec

A spec is one YAML file. `poros bench plan SPEC` checks it and lists its cells without running them.

    spec_id: my-first-campaign
    hardware: {gpu_name: NVIDIA GeForce RTX 3090}
    models:
      - model_id: Qwen/Qwen2.5-7B
    methods: [poros, resident, peft, unsloth]

This page is what `poros schema spec` prints; `poros schema spec --json` prints a JSON Schema.

Reading is strict. A fault is shown as `file:line:column: what is wrong; what was expected`, the exit
code is 2, and nothing has been created. Refused are: unknown and duplicate keys, wrong types, values
out of range, `steps` not above `warmup_steps`, anchors, aliases, tags and directives, octal and
hexadecimal numbers, numbers that are not finite, `yes` and `no` for booleans, text without quotes
that YAML could take for a number or a boolean, a second document, files over 1 MiB, nesting over 32
levels, and text that is not UTF-8.

In the column *counts*, `no` marks keys that do not change which work a cell is: a campaign can go on
after they were changed.
)";

std::string type_name(const SchemaKey& key) {
  switch (key.type) {
    case KeyType::text:
      return key.rule.choices.empty() ? "text" : "word";
    case KeyType::integer:
      return "integer";
    case KeyType::number:
      return "number";
    case KeyType::boolean:
      return "boolean";
    case KeyType::duration:
      return "duration";
    case KeyType::text_list:
      return "list";
    case KeyType::integer_map:
    case KeyType::number_map:
      return "mapping";
  }
  return "";
}

std::string duration_text(double seconds) {
  if (seconds >= 3600 && seconds / 3600 == static_cast<int>(seconds / 3600)) {
    return fmt::format("{}h", static_cast<int>(seconds / 3600));
  }
  if (seconds >= 60 && seconds / 60 == static_cast<int>(seconds / 60)) {
    return fmt::format("{}m", static_cast<int>(seconds / 60));
  }
  return fmt::format("{}s", seconds);
}

std::string default_text(const SchemaKey& key) {
  const Json& value = key.default_value;
  if (key.rule.required) return "required";
  if (value.is_null()) return "not set";
  if (key.type == KeyType::duration) return duration_text(value.get<double>());
  if (value.is_string()) return value.get<std::string>().empty() ? "not set" : value;
  if (value.is_array()) {
    if (value.empty()) return key.rule.keyword;
    if (value.size() == key.rule.choices.size()) return "all of them";
    return fmt::format("[{}]", fmt::join(value.get<std::vector<std::string>>(), ", "));
  }
  if (value.is_object()) return "{}";
  if (value.is_number_float()) return fmt::format("{}", value.get<double>());
  return dump_json(value);
}

/// What follows the type in an expectation: words or range.
std::string allowed_text(const SchemaKey& key) {
  if (!key.rule.choices.empty()) return fmt::format("{}", fmt::join(key.rule.choices, ", "));
  std::string text = expectation(key);
  for (const char* start : {"an integer", "a number", "a mapping of layer names to integers",
                            "a mapping of layer names to numbers"}) {
    if (text.starts_with(start)) text = text.substr(std::string(start).size());
  }
  if (key.type == KeyType::boolean || key.type == KeyType::text_list || text == "text") return "";
  if (key.rule.form != TextForm::any && key.type == KeyType::text) return "";  // told in the text
  if (key.type == KeyType::duration) return "above 0";
  return text.empty() ? "" : text.substr(text[0] == ' ' ? 1 : 0);
}

Json key_schema(const SchemaKey& key) {
  const KeyRule& rule = key.rule;
  Json number = Json::object();
  if (rule.min) number[rule.above_min ? "exclusiveMinimum" : "minimum"] = *rule.min;
  if (rule.max) number[rule.below_max ? "exclusiveMaximum" : "maximum"] = *rule.max;
  Json text = {{"type", "string"}};
  if (!rule.choices.empty()) text["enum"] = rule.choices;
  if (const std::string pattern = form_pattern(rule.form); !pattern.empty()) {
    text["pattern"] = pattern;
  }
  Json schema;
  switch (key.type) {
    case KeyType::text:
      schema = text;
      break;
    case KeyType::integer:
    case KeyType::number:
      schema = number;
      schema["type"] = key.type == KeyType::integer ? "integer" : "number";
      break;
    case KeyType::boolean:
      schema = {{"type", "boolean"}};
      break;
    case KeyType::duration:
      schema = {{"type", {"string", "number"}},
                {"pattern", "^[0-9]+(\\.[0-9]+)?(ms|s|m|min|h|d)?$"},
                {"exclusiveMinimum", 0}};
      break;
    case KeyType::text_list:
      schema = {{"type", "array"}, {"items", text}, {"minItems", 1}, {"uniqueItems", true}};
      if (!rule.keyword.empty()) {
        schema = {{"anyOf", {schema, {{"const", rule.keyword}}, {{"type", "null"}}}}};
      }
      break;
    case KeyType::integer_map:
    case KeyType::number_map:
      number["type"] = key.type == KeyType::integer_map ? "integer" : "number";
      schema = {{"type", "object"}, {"additionalProperties", number}};
      break;
  }
  if (key.nullable) schema["type"] = {schema["type"], "null"};
  schema["description"] = key.unit.empty() ? key.text : key.text + " [" + key.unit + "]";
  if (!key.rule.required && !key.default_value.is_null()) {
    schema["default"] = key.type == KeyType::duration
                            ? Json(duration_text(key.default_value.get<double>()))
                            : key.default_value;
    if (key.type == KeyType::text_list && key.default_value.empty()) {
      schema["default"] = key.rule.keyword;
    }
    if (key.default_value == "") schema.erase("default");
  }
  return schema;
}

}  // namespace

Json section_schema(const std::string& path) {
  const SchemaSection& section = schema_section(path);
  Json properties = Json::object(), required = Json::array();
  for (const SchemaKey& key : section.keys) {
    if (key.rule.later) continue;
    properties[key.name] = key_schema(key);
    if (key.rule.required) required.push_back(key.name);
  }
  Json schema = {{"type", "object"},
                 {"description", section.text},
                 {"properties", properties},
                 {"additionalProperties", false}};
  if (!required.empty()) schema["required"] = required;
  return schema;
}

constexpr const char* kMatrix = R"(
## A matrix

Lists make a product: `hardware` may be a list of GPU types, and every model is measured in every
precision by every method on every type. Four keys at the top of the file change that product, in
this order; a cell is one method, model, precision and GPU type with its settings.

    sweep:                                     # every combination of these values
      training.seq_len: [512, 2048]
      poros.block_size: [1, 4]
    include:                                   # one more cell for each cell of the product that matches
      - match: {method: poros, model: Qwen2.5-7B}
        set: {training.seq_len: 8192}
    overrides:                                 # settings of the cells that match
      - match: {gpu: RTX 3090, model: Qwen2.5-14B}
        set: {training.seq_len: 256}
    exclude:                                   # cells that are left out
      - {gpu: RTX 3090, model: Qwen2.5-72B, method: resident}

What can be swept and set: the keys of `training`, `lora`, `poros` and `peers.<method>` that count,
`hardware.vram_cap_mb`, `model.revision` and `model.weights`, written with a dot. `match` takes these
and `method`, `model` (slug, hub id or display name), `precision` and `gpu`. A rule that matches no
cell is refused. A swept key that an arm does not read makes no second cell of it. `poros bench plan`
shows the cells.
)";

std::string section_table(const SchemaSection& section, bool counts,
                          const std::vector<std::string>& without) {
  std::vector<std::vector<std::string>> rows = {{"key", "type", "default", "allowed", "unit"}};
  if (counts) rows[0].emplace_back("counts");
  rows[0].emplace_back("meaning");
  for (const SchemaKey& key : section.keys) {
    if (key.rule.later || std::ranges::find(without, key.name) != without.end()) continue;
    std::vector<std::string> row = {key.name, type_name(key), default_text(key), allowed_text(key),
                                    key.unit};
    if (counts) row.emplace_back(key.rule.counts ? "" : "no");
    row.push_back(key.text);
    rows.push_back(std::move(row));
  }
  return markdown_table(rows);
}

std::string schema_markdown() {
  std::string text = kHead;
  std::vector<std::string> later;
  for (const SchemaSection& section : schema_sections()) {
    text += fmt::format("\n## {}\n\n{}\n\n",
                        section.path.empty() ? "Top of the file" : section.path, section.text);
    for (const SchemaKey& key : section.keys) {
      if (key.rule.later) later.push_back("`" + key.path() + "`");
    }
    text += section_table(section, true);
  }
  text += kMatrix;
  later.emplace_back("`gpus_per_cell`");
  text +=
      fmt::format("\n## Known, but not available yet\n\nRefused with a message of their own: {}.\n",
                  fmt::join(later, ", "));
  return text;
}

Json dataset_schema() {
  Json dataset = section_schema("training.dataset");
  const Json source = dataset["properties"]["source"];
  dataset["properties"]["path"] = {{"type", "string"},
                                   {"description", "A path, seen from the spec's folder."}};
  dataset["oneOf"] = {{{"required", {"source"}}}, {{"required", {"path"}}}};
  return {{"anyOf", {source, dataset}}, {"default", "synthetic"}};
}

Json schema_json() {
  Json schema = section_schema("");
  schema["$schema"] = "https://json-schema.org/draft/2020-12/schema";
  schema["title"] = "Poros Bench spec";
  Json& properties = schema["properties"];
  for (const char* name : {"hardware", "training", "lora", "poros", "timeouts", "reporting"}) {
    properties[name] = section_schema(name);
  }
  properties["models"] = {
      {"type", "array"}, {"minItems", 1}, {"items", section_schema("models[]")}};
  schema["required"].push_back("models");
  properties["training"]["properties"]["dataset"] = dataset_schema();
  Json peers = Json::object();
  for (const std::string& method : peer_methods()) {
    peers[method] = section_schema("peers.<method>");
  }
  const Json mapping = {{"type", "object"}};
  const Json rule = {{"type", "object"},
                     {"properties", {{"match", mapping}, {"set", mapping}}},
                     {"required", {"set"}},
                     {"additionalProperties", false}};
  properties["sweep"] = {{"type", "object"},
                         {"additionalProperties", {{"type", "array"}, {"minItems", 1}}}};
  for (const char* name : {"include", "overrides"}) {
    properties[name] = {{"type", "array"}, {"minItems", 1}, {"items", rule}};
  }
  properties["exclude"] = {{"type", "array"}, {"minItems", 1}, {"items", mapping}};
  properties["hardware"] = {
      {"anyOf",
       {properties["hardware"],
        {{"type", "array"}, {"minItems", 1}, {"items", properties["hardware"]}}}}};
  properties["peers"] = {
      {"type", "object"}, {"properties", peers}, {"additionalProperties", false}};
  return schema;
}

}  // namespace poros
