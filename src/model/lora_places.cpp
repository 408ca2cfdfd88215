// SPDX-License-Identifier: Apache-2.0
// Which linears a LoRA description adapts, in PEFT's way of matching names.
#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "base/error.hpp"
#include "model/adapter.hpp"
#include "model/lora_match.hpp"
#include "model/name_pattern.hpp"

namespace poros {

bool is_name_suffix(const std::string& name, const std::string& suffix) {
  return name == suffix || (name.size() > suffix.size() && name.ends_with(suffix) &&
                            name[name.size() - suffix.size() - 1] == '.');
}

namespace {

/// The value of the one pattern key that fits, or nothing. PEFT takes the first that fits in the
/// order of the file, which JSON doesn't keep: keys that fit one name must agree.
template <class T>
std::optional<T> pattern_value(const std::map<std::string, T>& patterns, const std::string& name,
                               const char* what) {
  std::optional<T> value;
  for (const auto& [key, candidate] : patterns) {
    if (!pattern_fits(key, name, what)) continue;
    if (value && *value != candidate) {
      fail(Fault::input, "{}: several keys fit {} with different values", what, name);
    }
    value = candidate;
  }
  return value;
}

}  // namespace

bool has_experts(const LayerShape& layer) {
  return layer.mlp.experts > 0;
}

bool is_adapted_by_default(const LayerShape& layer, const LinearShape& linear) {
  if (!linear.quantised) return false;  // the router
  return !has_experts(layer) || linear.name.starts_with("self_attn.");
}

LoraSettings lora_settings(const std::string& module, const LoraSpec& lora) {
  LoraSettings settings;
  settings.rank = pattern_value(lora.rank_pattern, module, "rank_pattern").value_or(lora.rank);
  settings.alpha = pattern_value(lora.alpha_pattern, module, "alpha_pattern").value_or(lora.alpha);
  if (settings.rank < 1 || settings.rank > 65536) {
    fail(Fault::input, "{}: LoRA rank {} is out of range", module, settings.rank);
  }
  return settings;
}

double lora_scale(const LoraSettings& settings, bool use_rslora) {
  const auto rank = static_cast<double>(settings.rank);
  return settings.alpha / (use_rslora ? std::sqrt(rank) : rank);
}

std::string module_name(const Architecture& architecture, std::int64_t layer,
                        const std::string& name) {
  // PEFT's names begin with "base_model.model.".
  return fmt::format("{}{}.{}",
                     architecture.peft_prefix.substr(std::string("base_model.model.").size()),
                     layer, name);
}

LoraPlace make_place(const Architecture& architecture, std::int64_t layer,
                     const LinearShape& linear, const LoraSettings& settings, bool use_rslora) {
  LoraPlace place;
  place.layer = layer;
  place.linear = linear.name;
  place.peft_name = fmt::format("{}{}.{}", architecture.peft_prefix, layer, linear.name);
  place.in = linear.in;
  place.out = linear.out;
  place.rank = settings.rank;
  place.scale = static_cast<float>(lora_scale(settings, use_rslora));
  if (!std::isfinite(place.scale)) {
    fail(Fault::input, "{}: LoRA alpha {} is out of range", place.peft_name, settings.alpha);
  }
  return place;
}

std::vector<LoraPlace> lora_places(const Architecture& architecture, const LoraSpec& lora) {
  const bool all = lora.target_modules.empty() ||
                   (lora.target_modules.size() == 1 && lora.target_modules[0] == "all-linear");
  std::vector<bool> used(lora.target_modules.size(), false);
  std::vector<LoraPlace> places;
  for (std::int64_t layer = 0; layer < architecture.layer_count(); ++layer) {
    const LayerShape& shape = architecture.layers[static_cast<std::size_t>(layer)];
    for (const LinearShape& linear : shape.linears) {
      // The checkpoint's name, and transformers', which differs in nested checkpoints.
      const std::string stored =
          fmt::format("{}{}.{}", architecture.layer_prefix, layer, linear.name);
      const std::string module = module_name(architecture, layer, linear.name);
      bool wanted = all && is_adapted_by_default(shape, linear);
      for (std::size_t t = 0; !all && t < used.size(); ++t) {
        const std::string& target = lora.target_modules[t];
        if (!is_name_suffix(module, target) && !is_name_suffix(stored, target)) continue;
        if (!linear.quantised) {
          fail(Fault::input, "target_modules: \"{}\" is the router, which is not adapted",
               lora.target_modules[t]);
        }
        wanted = used[t] = true;
      }
      if (!wanted) continue;
      const LoraSettings settings = lora_settings(module, lora);
      places.push_back(make_place(architecture, layer, linear, settings, lora.use_rslora));
    }
  }
  for (std::size_t t = 0; !all && t < used.size(); ++t) {
    if (used[t]) continue;
    std::set<std::string> known;
    for (const LayerShape& shape : architecture.layers) {
      for (const LinearShape& linear : shape.linears) {
        if (linear.quantised) known.insert(linear.name.substr(linear.name.rfind('.') + 1));
      }
    }
    fail(Fault::input, "target_modules: \"{}\" matches no linear layer of a {}; there are {}",
         lora.target_modules[t], architecture.model_type, fmt::join(known, ", "));
  }
  return places;
}

}  // namespace poros
