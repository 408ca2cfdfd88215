// SPDX-License-Identifier: Apache-2.0
#include "model/architectures.hpp"

namespace poros::arch {

/// Qwen3: no biases unless attention_bias, RMSNorm on each head's queries and keys, head_dim of its
/// own.
Architecture qwen3(const ModelConfig& config) {
  require_activation(config, "hidden_act", "silu");
  Architecture a = decoder(config, 1e-6, false);
  const bool attention_bias = config.flag("attention_bias", false);
  LayerShape layer;
  layer.attention = attention(config, 128);
  layer.attention.qk_norm = true;
  layer.mlp.intermediate = config.size("intermediate_size", kMaxWidth);
  add_attention(a, layer, attention_bias, attention_bias);
  add_dense_mlp(a, layer, false);
  layer.norms = {"input_layernorm", "post_attention_layernorm", "self_attn.q_norm",
                 "self_attn.k_norm"};
  a.layers.assign(a.layers.size(), layer);
  set_qwen_windows(config, a);
  a.rope_tables = {
      rope_table(config, config.rope("", 1e4), layer.attention.rotary_dim, a.max_positions)};
  return a;
}

}  // namespace poros::arch
