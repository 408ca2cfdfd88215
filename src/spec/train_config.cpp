// SPDX-License-Identifier: Apache-2.0
#include "spec/train_config.hpp"

#include "base/error.hpp"
#include "base/files.hpp"
#include "spec/section_json.hpp"
#include "spec/shared_sections.hpp"
#include "spec/spec_json.hpp"
#include "spec/text_form.hpp"
#include "spec/yaml_tree.hpp"

namespace poros {

template <>
const std::vector<Field<TrainConfig>>& fields() {
  using S = TrainConfig;
  static const std::vector<Field<S>> table = {
      {"device",
       &S::device,
       {.choices = {"auto", "cuda", "cpu"}},
       "",
       "auto: the GPU where there is one, else the CPU."},
      {"precision",
       &S::precision,
       {.choices = {"nf4", "bf16", "fp16"}},
       "",
       "Storage of the frozen base."},
      {"residency",
       &S::residency,
       {.choices = {"auto", "poros", "resident"}, .counts = false},
       "",
       "Where the base waits: poros streams it, resident keeps it on the device. auto: resident "
       "where the plan fits into poros.vram_budget_mb or the free memory, else poros."},
      {"epochs",
       &S::epochs,
       {.min = 0, .max = 1e6, .above_min = true, .counts = false},
       "",
       "Times that the data are read, in place of training.steps; each time in another order."},
      {"eval_every",
       &S::eval_every,
       {.min = 0, .max = 1e8, .counts = false},
       "optimizer steps",
       "Evaluate on the validation rows; 0: before the first step and after the last."},
      {"eval_rows",
       &S::eval_rows,
       {.min = 0, .max = 1e8, .counts = false},
       "rows",
       "How many of the validation rows; 0: all."},
      {"save_every",
       &S::save_every,
       {.min = 0, .max = 1e8, .counts = false},
       "optimizer steps",
       "Write a checkpoint; 0: at the end and when stopped."},
      {"keep_checkpoints",
       &S::keep_checkpoints,
       {.min = 1, .max = 1e6, .counts = false},
       "checkpoints",
       "Older ones are removed once a new one is on the disk."},
      {"output_dir",
       &S::output_dir,
       {.counts = false},
       "",
       "Gets adapter/, checkpoints/, events.jsonl; seen from the current folder."},
      {"tensorboard", &S::tensorboard, {.counts = false}, "", "Write tensorboard/ too."},
      {"threads",
       &S::threads,
       {.min = 1, .max = 4096, .counts = false},
       "",
       "CPU threads; on the CPU their number can change the last bits. Not set: all."},
  };
  return table;
}

namespace {

/// Keys of `training` that belong to measuring.
const std::vector<std::string>& bench_keys() {
  static const std::vector<std::string> keys = {"warmup_steps", "n_passes"};
  return keys;
}

class TrainConfigReader : private SharedSections {
 public:
  explicit TrainConfigReader(const std::string& origin) : SharedSections(origin), origin_(origin) {}

  TrainConfig read(const YamlNode& root, const std::filesystem::path& folder) {
    Json json = read_section(root, "train", "");
    for (const char* name : {"training", "lora", "poros"}) {
      json[name] = schema_section(name).defaults();
    }
    json["training"]["dataset"] = schema_section("training.dataset").defaults();
    json["model"] = schema_section("models[]").defaults();
    for (const auto& [key, node] : root.entries) read_below(json, key.text, node);
    if (find_entry(root, "model") == nullptr) {
      add(root.place,
          "key \"model\" is missing; expected a hub id (org/name), a path that begins "
          "with /, ./ or ../, or a mapping with \"model_id\"");
    }
    if (clean()) check_together(json, root);
    stop_on_issues();
    TrainConfig config = train_config_from_json(json, origin_);
    config.file = origin_;
    resolve_paths(config.model, folder);
    resolve_paths(config.training.dataset, folder);
    return config;
  }

 private:
  void read_below(Json& json, const std::string& name, const YamlNode& node) {
    if (name == "model") {
      if (node.kind == YamlNode::Kind::map) {
        json["model"] = read_section(node, "models[]", "model");
      } else {
        json["model"]["model_id"] =
            read_value(*schema_section("models[]").find("model_id"), node, "model");
      }
    } else if (name == "training") {
      json["training"] = read_training(node);
      for (const auto& [key, value] : node.entries) {
        if (key.text == "warmup_steps") {
          add(key.place,
              "key \"training.warmup_steps\" belongs to a benchmark (steps left out of "
              "timing); did you mean \"training.lr_warmup_steps\"?");
        } else if (key.text == "n_passes") {
          add(key.place, "key \"training.n_passes\" belongs to a benchmark; leave it out");
        }
      }
    } else if (name == "lora" || name == "poros") {
      json[name] = read_section(node, name, name);
    }
  }

  void check_together(const Json& json, const YamlNode& root) {
    const YamlNode* training = find_entry(root, "training");
    const bool steps = training != nullptr && find_entry(*training, "steps") != nullptr;
    if (!json["epochs"].is_null()) {
      if (steps) {
        add(place_of(root, "training", "steps"),
            "training.steps and epochs are both given; expected one of them");
      }
      if (json["training"]["dataset"]["source"] == "synthetic") {
        add(find_entry(root, "epochs")->place,
            "epochs: synthetic data have no end; expected training.steps");
      }
    }
    Json shape = json;
    // The steps of epochs are known when the data are.
    if (!json["epochs"].is_null()) shape["training"]["steps"] = std::int64_t{100000000};
    check_shape(shape, root);
    if (json["residency"] == "resident" && !json["poros"]["vram_budget_mb"].is_null()) {
      add(place_of(root, "poros", "vram_budget_mb"),
          "poros.vram_budget_mb means nothing where residency is resident; expected auto or poros");
    }
  }

  std::string origin_;
};

void drop_labels(Json& json, const SchemaSection& section) {
  for (const SchemaKey& key : section.keys) {
    if (!key.rule.counts) json.erase(key.name);
  }
}

void add_differences(const Json& before, const Json& after, const std::string& path,
                     std::vector<std::string>& found) {
  if (before == after) return;
  if (before.is_object() && after.is_object()) {
    Json names = before;
    names.update(after);
    for (const auto& [name, ignored] : names.items()) {
      const auto child = [&](const Json& json) {
        return json.contains(name) ? json[name] : Json(nullptr);
      };
      add_differences(child(before), child(after), path.empty() ? name : path + "." + name, found);
    }
    return;
  }
  found.push_back(fmt::format("{}: {} -> {}", path, dump_json(before), dump_json(after)));
}

constexpr const char* kHead = R"(# The config of `poros train`

One YAML file, read as strictly as a benchmark's spec (docs/spec.md): unknown keys, wrong types and
values out of range are refused with file, line and column, and nothing is created.

    model: ./models/my-model            # or a hub id in the local cache
    training:
      dataset: {path: ./data/chat.jsonl, validation_fraction: 0.05}
      learning_rate: 2.0e-4
    epochs: 3
    output_dir: ./out

`poros schema train --json` prints a JSON Schema. What data may be: docs/data.md.
)";

}  // namespace

TrainConfig parse_train_config(std::string_view text, const std::string& origin,
                               const std::filesystem::path& folder) {
  const YamlNode root = parse_yaml(text, origin);
  return TrainConfigReader(origin).read(root, folder);
}

TrainConfig read_train_config(const std::filesystem::path& file) {
  const YamlLimits limits;
  // One byte more than allowed: the YAML reader itself says what is wrong with a large file.
  return parse_train_config(read_file(file, limits.max_bytes + 1), file.string(),
                            file.parent_path());
}

Json to_json(const TrainConfig& config) {
  Json json = section_to_json(config);
  json["model"] = section_to_json(config.model);
  json["training"] = training_to_json(config.training);
  json["lora"] = section_to_json(config.lora);
  json["poros"] = section_to_json(config.poros);
  return json;
}

TrainConfig train_config_from_json(const Json& json, const std::string& origin) {
  auto config =
      strict_section<TrainConfig>(json, "train", origin, {"model", "training", "lora", "poros"});
  const auto below = [&](const char* name) {
    return json.contains(name) ? json[name] : Json::object();
  };
  config.model = strict_section<ModelSpec>(below("model"), "models[]", origin);
  config.training = training_from_json(below("training"), origin);
  config.training.warmup_steps = 0;
  config.lora = strict_section<LoraSpec>(below("lora"), "lora", origin);
  config.poros = strict_section<PorosSpec>(below("poros"), "poros", origin);
  return config;
}

Json training_work(const TrainConfig& config) {
  Json work = to_json(config);
  drop_labels(work, train_section());
  drop_labels(work["model"], schema_section("models[]"));
  drop_labels(work["training"], schema_section("training"));
  for (const std::string& key : bench_keys()) work["training"].erase(key);
  work["training"].erase("steps");
  // Names of places where the same may lie; the content's hashes are compared by themselves.
  work["model"].erase("model_id");
  for (const char* key : {"source", "validation", "validation_fraction", "chat_template"}) {
    work["training"]["dataset"].erase(key);
  }
  // Of the trainer's settings only these can change a bit.
  work["poros"] = {{"accumulation", config.poros.accumulation},
                   {"sweep_rows", to_json(config)["poros"]["sweep_rows"]},
                   {"plan_file", config.poros.plan_file}};
  return work;
}

std::vector<std::string> work_differences(const Json& before, const Json& after) {
  std::vector<std::string> found;
  add_differences(before, after, "", found);
  return found;
}

std::string train_schema_markdown() {
  std::string text = kHead;
  text += "\n## Top of the file\n\n" + train_section().text +
          " `model` is required: a hub id or a path, or a mapping as below.\n\n" +
          section_table(train_section(), false);
  const auto add = [&](const char* title, const char* path) {
    const SchemaSection& section = schema_section(path);
    text += fmt::format("\n## {}\n\n", title) + section_table(section, false, bench_keys());
  };
  add("model", "models[]");
  add("training", "training");
  add("training.dataset", "training.dataset");
  add("lora", "lora");
  add("poros", "poros");
  return text;
}

Json train_schema_json() {
  Json schema = section_schema("train");
  schema["$schema"] = "https://json-schema.org/draft/2020-12/schema";
  schema["title"] = "poros train config";
  Json& properties = schema["properties"];
  const Json model = section_schema("models[]");
  properties["model"] = {{"anyOf", {model["properties"]["model_id"], model}}};
  for (const char* name : {"training", "lora", "poros"}) properties[name] = section_schema(name);
  for (const std::string& key : bench_keys()) properties["training"]["properties"].erase(key);
  properties["training"]["properties"]["dataset"] = dataset_schema();
  schema["required"].push_back("model");
  return schema;
}

}  // namespace poros
