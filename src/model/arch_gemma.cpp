// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "base/error.hpp"
#include "model/architectures.hpp"

namespace poros::arch {
namespace {

/// What Gemma 2 and 3 share: norms before and after attention and MLP that multiply by 1 + w,
/// scaled embeddings, GELU, a score scale of its own. Sizes absent from a sparse text_config are
/// the defaults of the Hugging Face classes.
Architecture gemma(const ModelConfig& given, bool qk_norm, std::int64_t default_vocab,
                   std::int64_t default_positions) {
  Json filled = given.json();
  const auto default_to = [&](const char* key, Json value) {
    if (!filled.contains(key) || filled[key].is_null()) filled[key] = std::move(value);
  };
  default_to("vocab_size", default_vocab);
  default_to("max_position_embeddings", default_positions);
  default_to("hidden_size", 2304);
  default_to("intermediate_size", 9216);
  default_to("num_hidden_layers", 26);
  default_to("num_attention_heads", 8);
  default_to("num_key_value_heads", 4);
  const ModelConfig config(std::move(filled), given.origin());
  // Files older than hidden_activation say hidden_act; both mean the tanh form.
  require_activation(config, "hidden_activation", "gelu_pytorch_tanh");
  if (config.flag("use_bidirectional_attention", false)) {
    fail(Fault::input, "{}: bidirectional attention is not supported", config.origin());
  }
  Architecture a = decoder(config, 1e-6, true);
  a.norm_plus_one = true;
  a.post_norms = true;
  a.embed_scale = static_cast<float>(std::sqrt(static_cast<double>(a.hidden)));
  a.final_softcap = static_cast<float>(config.number("final_logit_softcapping", 0.0));
  const bool attention_bias = config.flag("attention_bias", false);
  LayerShape layer;
  layer.attention = attention(config, 256);
  layer.attention.qk_norm = qk_norm;
  layer.attention.scale = static_cast<float>(
      1.0 / std::sqrt(static_cast<double>(config.size("query_pre_attn_scalar", kMaxWidth, 256))));
  layer.attention.softcap = static_cast<float>(config.number("attn_logit_softcapping", 0.0));
  layer.mlp.activation = Activation::gelu_tanh;
  layer.mlp.intermediate = config.size("intermediate_size", kMaxWidth);
  add_attention(a, layer, attention_bias, attention_bias);
  add_dense_mlp(a, layer, false);
  layer.norms = {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                 "post_feedforward_layernorm"};
  if (qk_norm) {
    layer.norms.insert(layer.norms.end(), {"self_attn.q_norm", "self_attn.k_norm"});
  }
  a.layers.assign(a.layers.size(), layer);
  return a;
}

/// Sliding layers: those of layer_types, else all but each `period`-th.
void set_windows(const ModelConfig& config, Architecture& a, std::int64_t period) {
  const std::int64_t window = config.size("sliding_window", kMaxPositions, 4096);
  const std::vector<bool> listed = config.sliding_layers(a.layer_count());
  for (std::size_t i = 0; i < a.layers.size(); ++i) {
    const bool sliding =
        listed.empty() ? (static_cast<std::int64_t>(i) + 1) % period != 0 : bool{listed[i]};
    a.layers[i].attention.window = sliding ? window : 0;
  }
}

}  // namespace

/// Gemma 2: soft caps on scores and logits; every second layer, from the first on, with a window.
Architecture gemma2(const ModelConfig& config) {
  Json filled = config.json();
  // The class defaults; null means none, so that only an absent key is filled.
  if (!filled.contains("final_logit_softcapping")) filled["final_logit_softcapping"] = 30.0;
  if (!filled.contains("attn_logit_softcapping")) filled["attn_logit_softcapping"] = 50.0;
  const ModelConfig complete(std::move(filled), config.origin());
  Architecture a = gemma(complete, false, 256000, 8192);
  set_windows(config, a, 2);
  a.rope_tables = {
      rope_table(config, config.rope("", 1e4), a.layers[0].attention.rotary_dim, a.max_positions)};
  return a;
}

/// Gemma 3, text: norms on queries and keys, no soft caps, five layers with a window to one
/// without, each kind with a rotary base of its own.
Architecture gemma3_text(const ModelConfig& config) {
  Architecture a = gemma(config, true, 262208, 131072);
  const std::int64_t period = config.find_size("sliding_window_pattern", kMaxLayers)
                                  .value_or(config.size("_sliding_window_pattern", kMaxLayers, 6));
  set_windows(config, a, period);
  const std::int64_t rotary = a.layers[0].attention.rotary_dim;
  a.rope_tables = {
      rope_table(config, config.rope("full_attention", 1e6), rotary, a.max_positions),
      rope_table(config, config.rope("sliding_attention", 1e4), rotary, a.max_positions)};
  for (LayerShape& layer : a.layers)
    layer.attention.rope_table = layer.attention.window > 0 ? 1 : 0;
  return a;
}

/// The text part of a multimodal Gemma 3 checkpoint (vision tower and projector are not read).
Architecture gemma3(const ModelConfig& config) {
  const auto text = config.nested("text_config");
  if (!text) fail(Fault::input, "{}: gemma3 without text_config", config.origin());
  Json filled = text->json();
  filled["model_type"] = "gemma3";
  if (!filled.contains("tie_word_embeddings") && config.json().contains("tie_word_embeddings")) {
    filled["tie_word_embeddings"] = config.json()["tie_word_embeddings"];
  }
  Architecture a = gemma3_text(ModelConfig(std::move(filled), text->origin()));
  const std::string prefix = "model.language_model.";  // match_names() knows the older spelling
  a.layer_prefix = prefix + "layers.";
  a.embed_name = prefix + "embed_tokens.weight";
  a.final_norm_name = prefix + "norm.weight";
  a.head_name = a.tied_embeddings ? a.embed_name : "lm_head.weight";
  a.peft_prefix = "base_model.model." + a.layer_prefix;
  return a;
}

}  // namespace poros::arch
