// SPDX-License-Identifier: Apache-2.0
#include "spec/cell_spec.hpp"

#include <algorithm>

#include "base/files.hpp"
#include "base/sha256.hpp"
#include "spec/section_json.hpp"
#include "spec/text_form.hpp"

namespace poros {
namespace {

bool reads_poros(const CellSpec& cell) {
  return cell.method == "poros" || cell.method == "resident";
}

/// Puts a section in only where something in it differs from the defaults.
void add_work(Json& work, const char* name, Json section) {
  if (!section.empty()) work[name] = std::move(section);
}

/// What every arm of a comparison group has in common.
Json group_work(const CellSpec& cell) {
  const CellSpec defaults;
  Json work = Json::object();
  if (cell.precision != defaults.precision) work["precision"] = cell.precision;
  if (cell.device != defaults.device) work["device"] = cell.device;
  if (cell.protocol != defaults.protocol) work["protocol"] = cell.protocol;
  add_work(work, "model", section_work(cell.model));
  add_work(work, "hardware", section_work(cell.hardware));
  Json training = section_work(cell.training);
  add_work(training, "dataset", section_work(cell.training.dataset));
  add_work(work, "training", std::move(training));
  add_work(work, "lora", section_work(cell.lora));
  return work;
}

/// A top-level word of a cell, checked like the key of the spec that it comes from.
std::string cell_word(const Json& json, const char* name, const std::string& spec_key,
                      const std::string& origin) {
  auto value = json_get<std::string>(json, name, origin);
  const KeyRule& rule = schema_key(spec_key).rule;
  if (std::ranges::find(rule.choices, value) == rule.choices.end()) {
    fail(Fault::input, "{}: {}: \"{}\" is not a known value; expected one of: {}", origin, name,
         printable(value), fmt::join(rule.choices, ", "));
  }
  return value;
}

}  // namespace

Json to_json(const CellSpec& cell) {
  return {{"method", cell.method},
          {"precision", cell.precision},
          {"device", cell.device},
          {"protocol", cell.protocol},
          {"model", section_to_json(cell.model)},
          {"hardware", section_to_json(cell.hardware)},
          {"training", training_to_json(cell.training)},
          {"lora", section_to_json(cell.lora)},
          {"poros", section_to_json(cell.poros)},
          {"peer", section_to_json(cell.peer)}};
}

CellSpec cell_spec_from_json(const Json& json, const std::string& origin) {
  if (!json.is_object()) fail(Fault::input, "{}: the cell is not an object", origin);
  CellSpec cell;
  const Json known = to_json(cell);
  for (const auto& [name, ignored] : json.items()) {
    if (!known.contains(name)) fail(Fault::input, "{}: unknown key \"{}\"", origin, name);
  }
  for (const auto& [name, ignored] : known.items()) {
    if (!json.contains(name)) fail(Fault::input, "{}: key \"{}\" is missing", origin, name);
  }
  cell.method = cell_word(json, "method", "methods", origin);
  cell.precision = cell_word(json, "precision", "precisions", origin);
  cell.device = cell_word(json, "device", "device", origin);
  cell.protocol = cell_word(json, "protocol", "protocol", origin);
  cell.model = strict_section<ModelSpec>(json["model"], "models[]", origin);
  cell.hardware = strict_section<HardwareSpec>(json["hardware"], "hardware", origin);
  cell.training = training_from_json(json["training"], origin);
  cell.lora = strict_section<LoraSpec>(json["lora"], "lora", origin);
  cell.poros = strict_section<PorosSpec>(json["poros"], "poros", origin);
  cell.peer = strict_section<PeerSpec>(json["peer"], "peers.<method>", origin);
  return cell;
}

Json canonical_work(const CellSpec& cell) {
  Json work = group_work(cell);
  work["method"] = cell.method;
  if (reads_poros(cell)) {
    add_work(work, "poros", section_work(cell.poros));
  } else {
    add_work(work, "peer", section_work(cell.peer));
  }
  return work;
}

std::string cell_key(const CellSpec& cell) {
  return sha256_hex(dump_json(canonical_work(cell)));
}

std::string group_key(const CellSpec& cell) {
  return sha256_hex(dump_json(group_work(cell)));
}

std::string model_slug(const ModelSpec& model) {
  const auto slug_of = [](std::string text) {
    while (text.ends_with('/')) text.pop_back();
    text = text.substr(text.rfind('/') + 1);
    for (char& c : text) {
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
      const bool plain = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '-';
      if (!plain) c = '-';
    }
    const auto first = text.find_first_not_of(".-");
    text = first == text.npos ? "" : text.substr(first, 64);
    while (text.ends_with('-') || text.ends_with('.')) text.pop_back();
    return text;
  };
  for (const std::string& name : {model.model_id, model.display_name}) {
    if (std::string slug = slug_of(name); is_valid_id(slug)) return slug;
  }
  return "model";
}

}  // namespace poros
