// SPDX-License-Identifier: Apache-2.0
#include "spec/shared_sections.hpp"

#include "base/error.hpp"
#include "spec/scalar.hpp"
#include "spec/text_form.hpp"

namespace poros {
namespace {

/// A path seen from the folder; empty for what is no path.
std::string absolute(const std::string& text, const std::filesystem::path& folder) {
  if (!is_local_path(text)) return {};
  return (std::filesystem::absolute(folder.empty() ? "." : folder) / text)
      .lexically_normal()
      .string();
}

}  // namespace

Json SharedSections::read_training(const YamlNode& node) {
  Json json = read_section(node, "training", "training");
  const YamlNode* dataset = find_entry(node, "dataset");
  json["dataset"] =
      dataset == nullptr ? schema_section("training.dataset").defaults() : read_dataset(*dataset);
  return json;
}

Json SharedSections::read_dataset(const YamlNode& node) {
  const SchemaSection& schema = schema_section("training.dataset");
  const std::string shown = "training.dataset";
  Json json = schema.defaults();
  if (node.kind != YamlNode::Kind::map) {
    json["source"] = read_value(*schema.find("source"), node, shown);
    return json;
  }
  json = read_section(node, shown, shown);
  const YamlNode* path = find_entry(node, "path");
  const bool source = find_entry(node, "source") != nullptr;
  if ((path != nullptr) == source) {
    add(node.place, fmt::format("{}: {}; expected one of: source, path", shown,
                                source ? "both source and path are given"
                                       : "neither source nor path is given"));
  } else if (path != nullptr) {
    // Named as a path, so that "texts/a.txt" can't be meant as a hub id.
    const ScalarResult text = read_scalar(*path, KeyType::text, {});
    std::string wrong = text.wrong;
    if (wrong.empty()) {
      wrong = form_complaint(TextForm::any, text.value.get<std::string>()).value_or("");
    }
    if (!wrong.empty()) {
      add(path->place, fmt::format("{}.path: {}; expected a path", shown, wrong));
    } else {
      const auto value = text.value.get<std::string>();
      json["source"] = is_local_path(value) ? value : "./" + value;
    }
  }
  return json;
}

Place SharedSections::place_of(const YamlNode& root, const std::string& section,
                               const std::string& name) {
  const YamlNode* map = find_entry(root, section);
  if (map == nullptr) return root.place;
  const YamlNode* node = find_entry(*map, name);
  return node == nullptr ? map->place : node->place;
}

void SharedSections::check_shape(const Json& json, const YamlNode& root) {
  const Json& training = json["training"];
  const auto integer = [&](const char* name) { return training[name].get<std::int64_t>(); };
  if (integer("lr_warmup_steps") > integer("steps")) {
    add(place_of(root, "training", "lr_warmup_steps"),
        fmt::format("training.lr_warmup_steps: {} is more than steps ({}); expected at most that "
                    "many",
                    integer("lr_warmup_steps"), integer("steps")));
  }
  const double micro_batch =
      static_cast<double>(integer("batch_size")) * static_cast<double>(integer("seq_len"));
  const double step_tokens =
      micro_batch * static_cast<double>(integer("gradient_accumulation_steps"));
  if (step_tokens > 2147483647.0) {
    add(place_of(root, "training", "batch_size"),
        "training: batch_size x seq_len x gradient_accumulation_steps is over 2147483647 tokens "
        "a "
        "step; expected less");
  }
  const Json& rows = json["poros"]["sweep_rows"];
  if (!rows.is_null() && rows.get<double>() < micro_batch) {
    add(place_of(root, "poros", "sweep_rows"),
        fmt::format("poros.sweep_rows: {} is less than one micro-batch (batch_size x seq_len = "
                    "{:.0f} tokens); expected at least that many",
                    rows.get<std::int64_t>(), micro_batch));
  }
}

void resolve_paths(ModelSpec& model, const std::filesystem::path& folder) {
  model.path = absolute(model.model_id, folder);
  while (model.path.size() > 1 && model.path.ends_with('/')) model.path.pop_back();
  if (model.display_name.empty()) {
    const std::string& name = model.path.empty() ? model.model_id : model.path;
    model.display_name = name.substr(name.rfind('/') + 1);
    if (model.display_name.empty()) model.display_name = model.model_id;
  }
}

void resolve_paths(DatasetSpec& dataset, const std::filesystem::path& folder) {
  dataset.path = absolute(dataset.source, folder);
  dataset.validation_path = absolute(dataset.validation, folder);
  const std::string& text = dataset.chat_template;
  if (!text.empty()) {
    dataset.chat_template_path = absolute(is_local_path(text) ? text : "./" + text, folder);
  }
}

}  // namespace poros
