// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <optional>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "model/adapter.hpp"
#include "model/adapter_tensors.hpp"
#include "model/convert.hpp"
#include "model/lora_match.hpp"
#include "model/name_pattern.hpp"
#include "model/safetensors.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

// Each key is tried on each linear: bounds on the time that a hostile file costs.
constexpr std::size_t kMaxPatternKeys = 20000, kMaxExpressions = 64;

/// True for what PEFT writes where a feature is off: absent, null, false, empty.
bool is_off(const Json& config, const char* key) {
  const auto found = config.find(key);
  return found == config.end() || found->is_null() || *found == Json(false) ||
         ((found->is_array() || found->is_object() || found->is_string()) && found->empty());
}

/// Refuses what would change the arithmetic and isn't plain LoRA on linears.
void require_plain_lora(const Json& config, const std::string& origin) {
  if (!config.is_object()) fail(Fault::input, "{}: not a JSON object", origin);
  const auto type = json_get<std::string>(config, "peft_type", origin);
  if (type != "LORA") {
    fail(Fault::input, "{}: peft_type \"{}\" is not supported; known is LORA", origin, type);
  }
  if (!is_off(config, "use_dora"))
    fail(Fault::input, "{}: DoRA (use_dora) is not supported", origin);
  if (!is_off(config, "modules_to_save")) {
    fail(Fault::input, "{}: modules_to_save (whole trained modules) is not supported", origin);
  }
  for (const char* key : {"trainable_token_indices", "fan_in_fan_out", "lora_bias", "use_qalora",
                          "use_bdlora", "layer_replication", "alora_invocation_tokens",
                          "arrow_config", "kasa_config", "velora_config", "monteclora_config"}) {
    if (!is_off(config, key)) fail(Fault::input, "{}: {} is not supported", origin, key);
  }
  const std::string bias = json_find<std::string>(config, "bias", origin).value_or("none");
  if (bias != "none") fail(Fault::input, "{}: bias \"{}\" is not supported", origin, bias);
}

template <class T>
std::map<std::string, T> pattern(const Json& config, const char* key, const std::string& origin) {
  std::map<std::string, T> values;
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return values;
  if (!found->is_object()) fail(Fault::input, "{}: {} is no object", origin, key);
  if (found->size() > kMaxPatternKeys) {
    fail(Fault::input, "{}: {} has over {} keys", origin, key, kMaxPatternKeys);
  }
  std::size_t expressions = 0;
  for (const auto& [name, value] : found->items()) {
    if (!is_plain_key(name) && ++expressions > kMaxExpressions) {
      fail(Fault::input, "{}: {} has over {} regular expressions", origin, key, kMaxExpressions);
    }
    values[name] = json_get<T>(*found, name.c_str(), origin + ": " + key);
  }
  return values;
}

LoraSpec spec_from(const Json& config, const std::string& origin) {
  LoraSpec lora;
  lora.rank = json_get<std::int64_t>(config, "r", origin);
  lora.alpha = json_get<double>(config, "lora_alpha", origin);
  lora.dropout = json_find<double>(config, "lora_dropout", origin).value_or(0.0);
  lora.use_rslora = json_find<bool>(config, "use_rslora", origin).value_or(false);
  lora.rank_pattern = pattern<std::int64_t>(config, "rank_pattern", origin);
  lora.alpha_pattern = pattern<double>(config, "alpha_pattern", origin);
  const auto targets = config.find("target_modules");
  if (targets != config.end() && targets->is_array()) {
    for (const Json& target : *targets) {
      if (!target.is_string()) fail(Fault::input, "{}: target_modules has no names", origin);
      lora.target_modules.push_back(target.get<std::string>());
    }
  }
  return lora;
}

[[noreturn]] void refuse_left_over(const std::string& name, const Architecture& architecture,
                                   const std::string& origin) {
  std::string why = fmt::format("fits no linear layer of this {} model with {} layers",
                                architecture.model_type, architecture.layer_count());
  if (name.ends_with(".lora_magnitude_vector")) why = "belongs to DoRA, which is not supported";
  if (name.find("lora_embedding_") != std::string::npos ||
      name.find("embed_tokens") != std::string::npos || name.find("lm_head") != std::string::npos) {
    why = "adapts the embedding or the head, which is not supported";
  }
  fail(Fault::input, "{}: tensor \"{}\" {}", origin, name, why);
}

}  // namespace

std::vector<float> read_matrix(const SafetensorsFile& file, const TensorInfo& tensor,
                               std::int64_t rows, std::int64_t cols) {
  const std::string where = fmt::format("{}: tensor \"{}\"", file.path().string(), tensor.name);
  if (tensor.shape != std::vector<std::int64_t>{rows, cols}) {
    fail(Fault::input, "{}: shape {}, expected [{}, {}]", where, tensor.shape_text(), rows, cols);
  }
  if (tensor.type != TensorType::f32 && tensor.type != TensorType::bf16 &&
      tensor.type != TensorType::f16) {
    fail(Fault::input, "{}: {} is not supported; expected F32, BF16 or F16", where,
         name_of(tensor.type));
  }
  const std::string raw = file.read(tensor);
  if (has_non_finite(tensor.type, raw.data(), rows * cols)) {
    fail(Fault::input, "{}: holds NaN or infinity", where);
  }
  std::vector<float> values(static_cast<std::size_t>(rows * cols));
  (void)convert_values(tensor.type, raw.data(), rows * cols, Storage::fp32, values.data());
  return values;
}

Adapter read_adapter(const fs::path& folder, const Architecture& architecture) {
  const fs::path config_path = folder / "adapter_config.json";
  const fs::path weights_path = folder / "adapter_model.safetensors";
  const std::string origin = config_path.string();
  JsonLimits limits;
  limits.max_bytes = std::size_t{16} << 20;
  limits.max_depth = 16;
  Adapter adapter;
  adapter.config = parse_json(read_file(config_path, limits.max_bytes), origin, limits);
  require_plain_lora(adapter.config, origin);
  const LoraSpec lora = spec_from(adapter.config, origin);

  const SafetensorsFile file(weights_path);
  AdapterTensors left;
  for (const auto& [name, tensor] : file.tensors()) left[name] = &tensor;
  PlacedWeights placed;
  const std::vector<std::string> parameters =
      target_parameters(adapter.config, origin, architecture);
  for (std::int64_t layer = 0; layer < architecture.layer_count(); ++layer) {
    const auto& linears = architecture.layers[static_cast<std::size_t>(layer)].linears;
    for (std::size_t i = 0; i < linears.size(); ++i) {
      const std::string name =
          fmt::format("{}{}.{}", architecture.peft_prefix, layer, linears[i].name);
      const auto a = left.find(name + ".lora_A.weight");
      const auto b = left.find(name + ".lora_B.weight");
      if (a == left.end() && b == left.end()) continue;
      if (a == left.end() || b == left.end()) {
        fail(Fault::input, "{}: {} has only one of lora_A and lora_B", weights_path.string(), name);
      }
      // PEFT looks a parameter up by its own name.
      std::string module = module_name(architecture, layer, linears[i].name);
      if (is_target(parameters, module + ".weight")) module += ".weight";
      const LoraSettings settings = lora_settings(module, lora);
      const LoraPlace place =
          make_place(architecture, layer, linears[i], settings, lora.use_rslora);
      placed[{layer, i}] = {place,
                            settings,
                            {read_matrix(file, *a->second, place.rank, place.in),
                             read_matrix(file, *b->second, place.out, place.rank)}};
      left.erase(a);
      left.erase(b);
    }
  }
  if (read_fused_experts(adapter.config, origin, parameters, architecture, lora, file, left,
                         placed)) {
    describe_split_experts(architecture, lora, placed, adapter.config);
  }
  for (auto& [at, item] : placed) {
    adapter.places.push_back(std::move(item.place));
    adapter.weights.push_back(std::move(item.weights));
  }
  if (!left.empty()) refuse_left_over(left.begin()->first, architecture, weights_path.string());
  if (adapter.places.empty()) {
    fail(Fault::input, "{}: no LoRA tensors", weights_path.string());
  }
  // What the config promises must be there, unless it narrows its targets in ways not followed
  // here.
  if (!lora.target_modules.empty() && is_off(adapter.config, "exclude_modules") &&
      is_off(adapter.config, "layers_to_transform")) {
    for (const LoraPlace& place : lora_places(architecture, lora)) {
      if (!file.tensors().contains(place.peft_name + ".lora_A.weight")) {
        fail(Fault::input, "{}: tensor \"{}.lora_A.weight\" is missing", weights_path.string(),
             place.peft_name);
      }
    }
  }
  adapter.sha256 = sha256_file(weights_path);
  return adapter;
}

}  // namespace poros
