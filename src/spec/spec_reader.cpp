// SPDX-License-Identifier: Apache-2.0
// YAML tree -> JSON by the schema table (with places for messages) -> BenchmarkSpec.
#include "spec/spec_reader.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/files.hpp"
#include "spec/gpu_name.hpp"
#include "spec/matrix_reader.hpp"
#include "spec/schema.hpp"
#include "spec/shared_sections.hpp"
#include "spec/spec_json.hpp"
#include "spec/text_form.hpp"
#include "spec/yaml_tree.hpp"

namespace poros {
namespace {

class SpecReader : private SharedSections {
 public:
  explicit SpecReader(const std::string& origin) : SharedSections(origin), origin_(origin) {}

  BenchmarkSpec read(const YamlNode& root, const std::filesystem::path& folder) {
    Json json = read_section(root, "", "");
    json["hardware"] = schema_section("hardware").defaults();
    json["training"] = schema_section("training").defaults();
    json["training"]["dataset"] = schema_section("training.dataset").defaults();
    json["lora"] = schema_section("lora").defaults();
    json["poros"] = schema_section("poros").defaults();
    json["timeouts"] = schema_section("timeouts").defaults();
    json["reporting"] = schema_section("reporting").defaults();
    json["models"] = Json::array();
    json["peers"] = Json::object();
    for (const std::string& method : peer_methods()) {
      json["peers"][method] = schema_section("peers.<method>").defaults();
    }
    for (const auto& [key, node] : root.entries) read_below(json, key.text, node);
    if (find_entry(root, "models") == nullptr) {
      add(root.place, "key \"models\" is missing; expected a list with at least one model");
    }
    const MatrixSpec matrix = read_matrix(root, *this);
    if (clean()) check_together(json, root);
    stop_on_issues();
    add_matrix(json, matrix);
    BenchmarkSpec spec = spec_from_json(json, origin_);
    spec.file = origin_;
    for (ModelSpec& model : spec.models) resolve_paths(model, folder);
    resolve_paths(spec.training.dataset, folder);
    refuse_duplicates(spec, root);
    stop_on_issues();
    return spec;
  }

 private:
  /// The mappings below the top.
  void read_below(Json& json, const std::string& name, const YamlNode& node) {
    if (name == "models") {
      read_models(json["models"], node);
    } else if (name == "peers") {
      read_peers(json["peers"], node);
    } else if (name == "hardware" && node.kind == YamlNode::Kind::list) {
      read_hardware_types(json["hardware"], node);
    } else if (name == "training") {
      json["training"] = read_training(node);
    } else if (name == "hardware" || name == "lora" || name == "poros" || name == "timeouts" ||
               name == "reporting") {
      json[name] = read_section(node, name, name);
    }
  }

  /// A matrix: every cell once for each GPU type.
  void read_hardware_types(Json& types, const YamlNode& node) {
    types = Json::array();
    if (node.items.empty()) {
      add(node.place,
          "hardware: the list is empty; expected GPU types, each beginning with \"- gpu_name:\"");
      return;
    }
    if (too_many(node.items.size(), node.place, "hardware")) return;
    for (std::size_t i = 0; i < node.items.size(); ++i) {
      types.push_back(read_section(node.items[i], "hardware", fmt::format("hardware[{}]", i)));
      for (std::size_t k = 0; k < i; ++k) {
        const auto name = [&](std::size_t at) {
          return types[at].is_object() && types[at]["gpu_name"].is_string()
                     ? types[at]["gpu_name"].get<std::string>()
                     : std::string();
        };
        const bool same = !name(i).empty() && (name(i) == name(k) || is_same_gpu(name(i), name(k)));
        if (!same || types[i]["vram_cap_mb"] != types[k]["vram_cap_mb"] ||
            node.items[i].kind != YamlNode::Kind::map ||
            node.items[k].kind != YamlNode::Kind::map) {
          continue;
        }
        add(node.items[i].place,
            fmt::format("hardware[{}] is the same GPU type as hardware[{}]; expected each once", i,
                        k));
      }
    }
  }

  void read_models(Json& models, const YamlNode& node) {
    if (node.kind != YamlNode::Kind::list || node.items.empty()) {
      add(node.place,
          "models: expected a list with at least one model, each beginning with "
          "\"- model_id:\"");
      return;
    }
    if (too_many(node.items.size(), node.place, "models")) return;
    for (std::size_t i = 0; i < node.items.size(); ++i) {
      models.push_back(read_section(node.items[i], "models[]", fmt::format("models[{}]", i)));
    }
  }

  void read_peers(Json& peers, const YamlNode& node) {
    if (node.kind != YamlNode::Kind::map) {
      add(node.place,
          fmt::format("peers: expected a mapping with keys: {}", fmt::join(peer_methods(), ", ")));
      return;
    }
    for (const auto& [method, value] : node.entries) {
      if (std::ranges::find(peer_methods(), method.text) != peer_methods().end()) {
        peers[method.text] = read_section(value, "peers.<method>", "peers." + method.text);
        continue;
      }
      std::string message = fmt::format("unknown key \"peers.{}\"; expected one of: {}",
                                        printable(method.text), fmt::join(peer_methods(), ", "));
      if (method.text == "poros" || method.text == "resident") {
        message += "; this project's trainer is set in \"poros\"";
      } else if (const auto near = nearest(method.text, peer_methods()); !near.empty()) {
        message += fmt::format("; did you mean \"{}\"?", near);
      }
      add(method.place, message);
    }
  }

  /// What single values can't show.
  void check_together(const Json& json, const YamlNode& root) {
    const Json& training = json["training"];
    const auto integer = [&](const char* name) { return training[name].get<std::int64_t>(); };
    if (integer("steps") <= integer("warmup_steps")) {
      const YamlNode* mapping = find_entry(root, "training");
      const bool given = mapping != nullptr && find_entry(*mapping, "steps") != nullptr;
      add(place_of(root, "training", given ? "steps" : "warmup_steps"),
          fmt::format("training.steps: {} is not more than warmup_steps ({}); expected steps that "
                      "are timed after the warm-up",
                      integer("steps"), integer("warmup_steps")));
    }
    check_shape(json, root);
  }

  /// Two models that name the same checkpoint would make the same cells.
  void refuse_duplicates(const BenchmarkSpec& spec, const YamlNode& root) {
    for (std::size_t i = 0; i < spec.models.size(); ++i) {
      for (std::size_t k = 0; k < i; ++k) {
        const ModelSpec &a = spec.models[k], &b = spec.models[i];
        const bool same_place = a.path.empty() ? a.model_id == b.model_id : a.path == b.path;
        if (!same_place || a.revision != b.revision || a.weights != b.weights) continue;
        add(find_entry(root, "models")->items[i].place,
            fmt::format("models[{}] is the same model as models[{}] ({}); expected each once", i, k,
                        b.model_id));
        break;
      }
    }
  }

  std::string origin_;
};

}  // namespace

BenchmarkSpec parse_spec(std::string_view text, const std::string& origin,
                         const std::filesystem::path& folder) {
  const YamlNode root = parse_yaml(text, origin);
  return SpecReader(origin).read(root, folder);
}

BenchmarkSpec read_spec(const std::filesystem::path& file) {
  const YamlLimits limits;
  const std::string origin = file.string();
  // One byte more than allowed, so that the reader itself says what is wrong with a large file.
  std::error_code error;
  const auto bytes = std::filesystem::file_size(file, error);
  if (!error && bytes > limits.max_bytes) {
    fail(Fault::input, "{}:1:1: the file has {} bytes; expected at most {}", origin, bytes,
         limits.max_bytes);
  }
  return parse_spec(read_file(file, limits.max_bytes), origin, file.parent_path());
}

}  // namespace poros
