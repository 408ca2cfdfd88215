// SPDX-License-Identifier: Apache-2.0
// From config.json to an Architecture. Each architecture is one small file, arch_<name>.cpp, which
// describes it with the pieces below.
#pragma once

#include <string>
#include <vector>

#include "model/architecture.hpp"
#include "model/config.hpp"
#include "model/safetensors.hpp"

namespace poros {

/// @throws Error(Fault::input) for a model_type that isn't known (with the list of those that are),
/// and for settings that the trainer doesn't have (another activation, rope type, ...).
[[nodiscard]] Architecture read_architecture(const ModelConfig& config);

/// model_type of every known architecture, sorted.
[[nodiscard]] std::vector<std::string> known_model_types();

/// Adapts the names of `architecture` to a checkpoint that spells them in the architecture's other
/// way (nested multimodal checkpoints: language_model.model.* or model.language_model.*).
void match_names(Architecture& architecture, const Checkpoint& checkpoint);

/// Size of a norm weight: head_dim for the norms of queries and keys, hidden for all others.
[[nodiscard]] std::int64_t norm_size(const Architecture& architecture, const LayerShape& layer,
                                     const std::string& norm);

namespace arch {

// Limits of sizes in a config.json, far above any model: what is over them is a broken file.
inline constexpr std::int64_t kMaxLayers = 4096, kMaxExperts = 4096, kMaxExpertsInAll = 65536,
                              kMaxHeads = 65536, kMaxHeadDim = 65536,
                              kMaxWidth = std::int64_t{1} << 24, kMaxVocab = std::int64_t{1} << 28,
                              kMaxPositions = std::int64_t{1} << 40;

/// Everything but the layers, for keys that all decoders share.
[[nodiscard]] Architecture decoder(const ModelConfig& config, double default_rms_eps,
                                   bool default_tied);
/// Heads and sizes; head_dim from the config, else `default_head_dim`, else hidden / heads.
[[nodiscard]] AttentionShape attention(const ModelConfig& config,
                                       std::int64_t default_head_dim = 0);
/// Fails unless key ("hidden_act") says `wanted`.
void require_activation(const ModelConfig& config, const char* key, const std::string& wanted);
/// Adds q, k, v, o of `prefix` ("self_attn.") to a layer.
void add_attention(const Architecture& architecture, LayerShape& layer, bool qkv_bias, bool o_bias);
/// Adds gate, up, down of "mlp.".
void add_dense_mlp(const Architecture& architecture, LayerShape& layer, bool bias);
/// Adds a router and the three linears of each expert, named prefix + "experts.<e>." + name.
void add_experts(const Architecture& architecture, LayerShape& layer, const std::string& prefix,
                 const char* gate, const char* up, const char* down);

/// The window of each layer in Qwen's way (use_sliding_window, layer_types, max_window_layers).
void set_qwen_windows(const ModelConfig& config, Architecture& architecture);

// The architectures.
[[nodiscard]] Architecture llama(const ModelConfig& config);
[[nodiscard]] Architecture mistral(const ModelConfig& config);
[[nodiscard]] Architecture qwen2(const ModelConfig& config);
[[nodiscard]] Architecture qwen3(const ModelConfig& config);
[[nodiscard]] Architecture qwen3_moe(const ModelConfig& config);
[[nodiscard]] Architecture gemma2(const ModelConfig& config);
[[nodiscard]] Architecture gemma3_text(const ModelConfig& config);
[[nodiscard]] Architecture gemma3(const ModelConfig& config);
[[nodiscard]] Architecture phi3(const ModelConfig& config);
[[nodiscard]] Architecture mixtral(const ModelConfig& config);

}  // namespace arch
}  // namespace poros
