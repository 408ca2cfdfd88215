// SPDX-License-Identifier: Apache-2.0
// Which linears a LoRA description adapts, in PEFT's way of matching names.
#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "base/error.hpp"
#include "model/adapter.hpp"
#include "model/lora_match.hpp"

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
    const bool plain = std::all_of(key.begin(), key.end(), [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '^';
    });
    if (!plain) {
      fail(Fault::input, "{}: key \"{}\" is a regular expression; only module names are supported",
           what, key);
    }
    const bool anchored = key.starts_with('^');
    if (anchored ? name != key.substr(1) : !is_name_suffix(name, key)) continue;
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

LoraPlace make_place(const Architecture& architecture, std::int64_t layer,
                     const LinearShape& linear, const LoraSpec& lora) {
  LoraPlace place;
  place.layer = layer;
  place.linear = linear.name;
  place.peft_name = fmt::format("{}{}.{}", architecture.peft_prefix, layer, linear.name);
  place.in = linear.in;
  place.out = linear.out;
  const std::string module = place.peft_name.substr(std::string("base_model.model.").size());
  place.rank = pattern_value(lora.rank_pattern, module, "rank_pattern").value_or(lora.rank);
  const double alpha =
      pattern_value(lora.alpha_pattern, module, "alpha_pattern").value_or(lora.alpha);
  if (place.rank < 1 || place.rank > 65536) {
    fail(Fault::input, "{}: LoRA rank {} is out of range", module, place.rank);
  }
  const auto rank = static_cast<double>(place.rank);
  place.scale = static_cast<float>(alpha / (lora.use_rslora ? std::sqrt(rank) : rank));
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
      const std::string module =
          fmt::format("{}{}.{}", architecture.layer_prefix, layer, linear.name);
      bool wanted = all && is_adapted_by_default(shape, linear);
      for (std::size_t t = 0; !all && t < used.size(); ++t) {
        if (!is_name_suffix(module, lora.target_modules[t])) continue;
        if (!linear.quantised) {
          fail(Fault::input, "target_modules: \"{}\" is the router, which is not adapted",
               lora.target_modules[t]);
        }
        wanted = used[t] = true;
      }
      if (wanted) places.push_back(make_place(architecture, layer, linear, lora));
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
