// SPDX-License-Identifier: Apache-2.0
#include "spec/matrix.hpp"

#include <algorithm>

#include "spec/gpu_name.hpp"
#include "spec/section_json.hpp"

namespace poros {
namespace {

struct KeyPath {
  std::string section, name;  // "peers.unsloth", "best_shape"
};

KeyPath split_path(const std::string& path) {
  const auto dot = path.rfind('.');
  if (dot == std::string::npos) return {"", path};
  return {path.substr(0, dot), path.substr(dot + 1)};
}

/// The method of "peers.<method>"; empty for other sections.
std::string peer_of(const std::string& section) {
  return section.starts_with("peers.") ? section.substr(6) : "";
}

/// The section as the schema names it; empty where a cell has none of that name.
std::string schema_path(const std::string& section) {
  if (section == "model") return "models[]";
  if (section == "training" || section == "lora" || section == "poros" || section == "hardware") {
    return section;
  }
  const std::string method = peer_of(section);
  const bool known = std::ranges::find(peer_methods(), method) != peer_methods().end();
  return known ? "peers.<method>" : "";
}

bool may_be_set(const std::string& section, const SchemaKey& key) {
  if (!key.rule.counts || key.rule.later) return false;
  if (section == "hardware") return key.name == "vram_cap_mb";
  if (section == "model") return key.name == "revision" || key.name == "weights";
  return true;
}

template <typename S>
S changed(const S& section, const KeyPath& key, const Json& value) {
  Json json = section_to_json(section);
  json[key.name] = value;
  return section_from_json<S>(json, schema_path(key.section), "matrix");
}

}  // namespace

const SchemaKey* settable_key(const std::string& path) {
  const KeyPath parts = split_path(path);
  const std::string section = schema_path(parts.section);
  if (section.empty()) return nullptr;
  const SchemaKey* key = schema_section(section).find(parts.name);
  return key != nullptr && may_be_set(parts.section, *key) ? key : nullptr;
}

std::vector<std::string> settable_keys() {
  std::vector<std::string> sections{"training", "lora", "poros", "hardware", "model"};
  for (const std::string& method : peer_methods()) sections.push_back("peers." + method);
  std::vector<std::string> paths;
  for (const std::string& section : sections) {
    for (const SchemaKey& key : schema_section(schema_path(section)).keys) {
      if (may_be_set(section, key)) paths.push_back(section + "." + key.name);
    }
  }
  return paths;
}

void apply_setting(CellSpec& cell, const std::string& path, const Json& value) {
  const KeyPath key = split_path(path);
  if (key.section == "training") {
    const DatasetSpec dataset = cell.training.dataset;
    cell.training = changed(cell.training, key, value);
    cell.training.dataset = dataset;
  } else if (key.section == "lora") {
    cell.lora = changed(cell.lora, key, value);
  } else if (key.section == "poros") {
    cell.poros = changed(cell.poros, key, value);
  } else if (key.section == "hardware") {
    cell.hardware = changed(cell.hardware, key, value);
  } else if (key.section == "model") {
    const std::string folder = cell.model.path;
    cell.model = changed(cell.model, key, value);
    cell.model.path = folder;
  } else if (peer_of(key.section) == cell.method) {
    cell.peer = changed(cell.peer, key, value);
  }
}

Json setting_of(const CellSpec& cell, const std::string& path) {
  const KeyPath key = split_path(path);
  const auto value = [&](const Json& section) { return section.value(key.name, Json(nullptr)); };
  if (key.section == "training") return value(section_to_json(cell.training));
  if (key.section == "lora") return value(section_to_json(cell.lora));
  if (key.section == "poros") return value(section_to_json(cell.poros));
  if (key.section == "hardware") return value(section_to_json(cell.hardware));
  if (key.section == "model") return value(section_to_json(cell.model));
  return peer_of(key.section) == cell.method ? value(section_to_json(cell.peer)) : Json(nullptr);
}

bool matches(const CellSpec& cell, const CellMatch& match) {
  return std::ranges::all_of(match, [&](const auto& condition) {
    const auto& [name, value] = condition;
    const std::string text = value.is_string() ? value.template get<std::string>() : "";
    if (name == "method") return cell.method == text;
    if (name == "precision") return cell.precision == text;
    if (name == "gpu") return is_same_gpu(text, cell.hardware.gpu_name);
    if (name == "model") {
      return text == model_slug(cell.model) || text == cell.model.model_id ||
             text == cell.model.display_name;
    }
    return setting_of(cell, name) == value;
  });
}

std::string settings_text(const CellSettings& settings) {
  std::string text;
  for (const auto& [path, value] : settings) {
    text += (text.empty() ? "" : ", ") + split_path(path).name + "=" +
            (value.is_string() ? value.get<std::string>() : dump_json(value));
  }
  return text;
}

std::string cell_complaint(const CellSpec& cell) {
  const TrainingSpec& training = cell.training;
  if (training.steps <= training.warmup_steps) {
    return fmt::format("training.steps: {} is not more than warmup_steps ({})", training.steps,
                       training.warmup_steps);
  }
  if (training.lr_warmup_steps > training.steps) {
    return fmt::format("training.lr_warmup_steps: {} is more than steps ({})",
                       training.lr_warmup_steps, training.steps);
  }
  if (!training.dataset.validation.empty() && training.dataset.validation_fraction > 0) {
    return "training.dataset: validation and validation_fraction are both given; expected one";
  }
  const double micro_batch =
      static_cast<double>(training.batch_size) * static_cast<double>(training.seq_len);
  if (micro_batch * static_cast<double>(training.gradient_accumulation_steps) > 2147483647.0) {
    return "training: batch_size x seq_len x gradient_accumulation_steps is over 2147483647 tokens "
           "a step";
  }
  if (cell.poros.sweep_rows && static_cast<double>(*cell.poros.sweep_rows) < micro_batch) {
    return fmt::format("poros.sweep_rows: {} is less than one micro-batch ({:.0f} tokens)",
                       *cell.poros.sweep_rows, micro_batch);
  }
  return {};
}

}  // namespace poros
