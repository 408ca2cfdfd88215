// SPDX-License-Identifier: Apache-2.0
// Pieces of lora_places() that the readers and writers of adapters use too.
#pragma once

#include <string>

#include "model/adapter.hpp"

namespace poros {

/// True when `suffix` is `name` or its last dotted parts: "q_proj" of "layers.0.self_attn.q_proj".
[[nodiscard]] bool is_name_suffix(const std::string& name, const std::string& suffix);

/// What rank_pattern and alpha_pattern give a name.
struct LoraSettings {
  std::int64_t rank = 0;
  double alpha = 0;
  bool operator==(const LoraSettings&) const = default;
};

/// @param module as transformers names it: "model.layers.0.self_attn.q_proj"
/// @throws Error(Fault::input): a rank out of range, or keys that fit and disagree
[[nodiscard]] LoraSettings lora_settings(const std::string& module, const LoraSpec& lora);

/// Factor of B A: alpha / rank, or alpha / sqrt(rank) with rslora.
[[nodiscard]] double lora_scale(const LoraSettings& settings, bool use_rslora);

/// "model.layers.<layer>.<name>": what transformers calls a module (or parameter) of a layer.
[[nodiscard]] std::string module_name(const Architecture& architecture, std::int64_t layer,
                                      const std::string& name);

/// Sizes, name, rank and scale of the adapter of one linear.
[[nodiscard]] LoraPlace make_place(const Architecture& architecture, std::int64_t layer,
                                   const LinearShape& linear, const LoraSettings& settings,
                                   bool use_rslora);

}  // namespace poros
