// SPDX-License-Identifier: Apache-2.0
// LoRA adapters on disk, in PEFT's format (adapter_config.json, adapter_model.safetensors; fp32).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "model/architecture.hpp"
#include "spec/spec.hpp"

namespace poros {

/// One adapted linear. y = W x + scale * B (A (dropout(x))).
struct LoraPlace {
  std::int64_t layer = 0;
  std::string linear;     // "self_attn.q_proj"
  std::string peft_name;  // "base_model.model.model.layers.0.self_attn.q_proj"
  std::int64_t rank = 0, in = 0, out = 0;
  float scale = 0;  // alpha / rank, or alpha / sqrt(rank) with rslora
};

/// Which linears an adapter of this description adapts, ordered by layer, then as in LayerShape.
/// @throws Error(Fault::input) when a target matches nothing, naming the targets that exist.
[[nodiscard]] std::vector<LoraPlace> lora_places(const Architecture& architecture,
                                                 const LoraSpec& lora);

struct LoraWeights {
  std::vector<float> a;  // [rank, in]
  std::vector<float> b;  // [out, rank]
};

struct Adapter {
  Json config;  // adapter_config.json
  std::vector<LoraPlace> places;
  std::vector<LoraWeights> weights;  // one a place
  std::string sha256;                // of adapter_model.safetensors
};

/// A drawn from kaiming_uniform(a = sqrt 5), that is U(-1/sqrt(in), 1/sqrt(in)), by Philox keyed
/// (seed, layer, linear, element); B zero.
[[nodiscard]] Adapter initial_adapter(const Architecture& architecture, const LoraSpec& lora,
                                      const std::string& base_model, std::uint64_t seed);

/// @throws Error(Fault::input): not LoRA, DoRA, adapted embeddings, shapes that don't fit, tensors
/// missing or left over.
[[nodiscard]] Adapter read_adapter(const std::filesystem::path& folder,
                                   const Architecture& architecture);

/// Writes both files; returns the sha256 of adapter_model.safetensors.
std::string write_adapter(const std::filesystem::path& folder, const Adapter& adapter);

}  // namespace poros
