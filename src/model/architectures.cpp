// SPDX-License-Identifier: Apache-2.0
#include "model/architectures.hpp"

#include <cmath>
#include <map>

#include "base/error.hpp"

namespace poros {
namespace {

using Describe = Architecture (*)(const ModelConfig&);

const std::map<std::string, Describe>& registry() {
  static const std::map<std::string, Describe> known = {
      {"llama", arch::llama},    {"mistral", arch::mistral}, {"qwen2", arch::qwen2},
      {"qwen3", arch::qwen3},    {"gemma2", arch::gemma2},   {"gemma3_text", arch::gemma3_text},
      {"gemma3", arch::gemma3},  {"phi3", arch::phi3},       {"qwen3_moe", arch::qwen3_moe},
      {"mixtral", arch::mixtral}};
  return known;
}

}  // namespace

std::vector<std::string> known_model_types() {
  std::vector<std::string> names;
  for (const auto& [name, describe] : registry()) names.push_back(name);
  return names;
}

Architecture read_architecture(const ModelConfig& config) {
  const std::string type = config.model_type();
  const auto found = registry().find(type);
  if (found == registry().end()) {
    fail(Fault::input, "{}: model_type \"{}\" is not supported; known are {}", config.origin(),
         type, fmt::join(known_model_types(), ", "));
  }
  return found->second(config);
}

void match_names(Architecture& a, const Checkpoint& checkpoint) {
  const std::string newer = "model.language_model.";
  const std::string older = "language_model.model.";
  if (a.layer_prefix.rfind(newer, 0) != 0 || checkpoint.find(a.embed_name)) return;
  for (std::string* name : {&a.layer_prefix, &a.embed_name, &a.final_norm_name, &a.head_name}) {
    if (name->rfind(newer, 0) == 0) {
      *name = older + name->substr(newer.size());
    } else if (name == &a.head_name) {
      *name = "language_model." + *name;
    }
  }
}

std::int64_t norm_size(const Architecture& architecture, const LayerShape& layer,
                       const std::string& norm) {
  return norm == "self_attn.q_norm" || norm == "self_attn.k_norm" ? layer.attention.head_dim
                                                                  : architecture.hidden;
}

namespace arch {

Architecture decoder(const ModelConfig& config, double default_rms_eps, bool default_tied) {
  Architecture a;
  a.model_type = config.model_type();
  a.layer_prefix = "model.layers.";
  a.embed_name = "model.embed_tokens.weight";
  a.final_norm_name = "model.norm.weight";
  a.vocab = config.size("vocab_size", kMaxVocab);
  a.hidden = config.size("hidden_size", kMaxWidth);
  const double eps = config.number("rms_norm_eps", default_rms_eps);
  if (eps < 0 || eps > 1) {
    fail(Fault::input, "{}: key \"rms_norm_eps\" is out of range", config.origin());
  }
  a.rms_eps = static_cast<float>(eps);
  a.tied_embeddings = config.flag("tie_word_embeddings", default_tied);
  a.head_name = a.tied_embeddings ? a.embed_name : "lm_head.weight";
  a.peft_prefix = "base_model.model." + a.layer_prefix;
  a.max_positions = config.size("max_position_embeddings", kMaxPositions, 2048);
  a.layers.resize(static_cast<std::size_t>(config.size("num_hidden_layers", kMaxLayers)));
  return a;
}

AttentionShape attention(const ModelConfig& config, std::int64_t default_head_dim) {
  AttentionShape shape;
  const std::int64_t hidden = config.size("hidden_size", kMaxWidth);
  shape.heads = config.size("num_attention_heads", kMaxHeads);
  shape.kv_heads = config.size("num_key_value_heads", kMaxHeads, shape.heads);
  if (shape.heads % shape.kv_heads != 0) {
    fail(Fault::input, "{}: {} attention heads are no multiple of {} key-value heads",
         config.origin(), shape.heads, shape.kv_heads);
  }
  const auto head_dim = config.find_size("head_dim", kMaxHeadDim);
  if (!head_dim && default_head_dim == 0 && hidden % shape.heads != 0) {
    fail(Fault::input, "{}: hidden_size {} is no multiple of {} attention heads", config.origin(),
         hidden, shape.heads);
  }
  shape.head_dim =
      head_dim.value_or(default_head_dim != 0 ? default_head_dim : hidden / shape.heads);
  shape.rotary_dim = shape.head_dim;
  shape.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)));
  return shape;
}

void require_activation(const ModelConfig& config, const char* key, const std::string& wanted) {
  const std::string found = config.text(key, wanted);
  if (found != wanted) {
    fail(Fault::input, "{}: {} \"{}\" is not supported for {}; expected \"{}\"", config.origin(),
         key, found, config.model_type(), wanted);
  }
}

void add_attention(const Architecture& a, LayerShape& layer, bool qkv_bias, bool o_bias) {
  const AttentionShape& s = layer.attention;
  const std::int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  layer.linears.push_back({"self_attn.q_proj", q, a.hidden, qkv_bias, true});
  layer.linears.push_back({"self_attn.k_proj", kv, a.hidden, qkv_bias, true});
  layer.linears.push_back({"self_attn.v_proj", kv, a.hidden, qkv_bias, true});
  layer.linears.push_back({"self_attn.o_proj", a.hidden, q, o_bias, true});
}

void add_dense_mlp(const Architecture& a, LayerShape& layer, bool bias) {
  const std::int64_t inner = layer.mlp.intermediate;
  layer.linears.push_back({"mlp.gate_proj", inner, a.hidden, bias, true});
  layer.linears.push_back({"mlp.up_proj", inner, a.hidden, bias, true});
  layer.linears.push_back({"mlp.down_proj", a.hidden, inner, bias, true});
}

void add_experts(const Architecture& a, LayerShape& layer, const std::string& prefix,
                 const char* gate, const char* up, const char* down) {
  if (a.layer_count() * layer.mlp.experts > kMaxExpertsInAll) {
    fail(Fault::input, "{} layers of {} experts are more than {} experts in all", a.layer_count(),
         layer.mlp.experts, kMaxExpertsInAll);
  }
  const std::int64_t inner = layer.mlp.intermediate;
  layer.mlp.router = prefix + "gate";
  layer.linears.push_back({layer.mlp.router, layer.mlp.experts, a.hidden, false, false});
  for (std::int64_t e = 0; e < layer.mlp.experts; ++e) {
    const std::string expert = fmt::format("{}experts.{}.", prefix, e);
    layer.linears.push_back({expert + gate, inner, a.hidden, false, true});
    layer.linears.push_back({expert + up, inner, a.hidden, false, true});
    layer.linears.push_back({expert + down, a.hidden, inner, false, true});
  }
}

}  // namespace arch
}  // namespace poros
