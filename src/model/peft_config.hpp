// SPDX-License-Identifier: Apache-2.0
// adapter_config.json such that PEFT makes the same function of the weights.
//
// Experts need care. A file names each expert's linears apart ("mlp.experts.3.gate_proj"), as
// transformers 4 does. transformers 5 keeps the experts of a layer in two parameters,
// mlp.experts.gate_up_proj and mlp.experts.down_proj, and PEFT fuses the weights when it loads the
// file: with E experts, gate of rank g and up of rank u, gate_up's A is [E, g + u, in] (gate's
// rows, then up's) and its B block-diagonal, [E, 2 inner, g + u]. So all experts of a layer must be
// adapted alike, gate and up together and with one scale, and without dropout, which PEFT's wrapper
// of a parameter doesn't have. PEFT sets the fused rank and alpha to twice r and lora_alpha, which
// is right without patterns and rslora; elsewhere keys for the fused names say what is meant.
#pragma once

#include <string>
#include <vector>

#include "base/json.hpp"
#include "model/adapter.hpp"
#include "model/lora_match.hpp"

namespace poros {

/// A name whose rank and alpha the patterns must give, and keys to add where they don't.
struct PatternGoal {
  std::string name, short_key, long_key;  // keys that fit the name in all layers, in its own
  LoraSettings wanted;
  LoraSettings otherwise;  // what holds when no key fits
};

/// Adds keys to lora's patterns until each goal is met. @throws Error(Fault::input) where an
/// earlier key stands in the way
void settle_patterns(const std::vector<PatternGoal>& goals, LoraSpec& lora);

/// The two names of a layer's fused experts: "model.layers.0.mlp.experts.gate_up_proj" (or
/// "...down_proj").
[[nodiscard]] std::string fused_name(const Architecture& architecture, std::int64_t layer,
                                     const char* parameter);

/// Index in LayerShape::linears of expert 0's gate.
[[nodiscard]] std::size_t first_expert_linear(const LayerShape& layer);

/// The whole configuration. @throws Error(Fault::input) for an adapter that PEFT can't load
[[nodiscard]] Json peft_config(const Architecture& architecture, const LoraSpec& lora,
                               const std::vector<LoraPlace>& places, const std::string& base_model);

/// Sets target_modules, target_parameters, rank_pattern and alpha_pattern of a configuration.
/// @param settings of each place
void set_targets(const Architecture& architecture, LoraSpec lora,
                 const std::vector<LoraPlace>& places, const std::vector<LoraSettings>& settings,
                 Json& config);

}  // namespace poros
