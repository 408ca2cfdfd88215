// SPDX-License-Identifier: Apache-2.0
#include "model/architectures.hpp"

namespace poros::arch {

/// Llama 2 and 3, and what follows their layout.
Architecture llama(const ModelConfig& config) {
  require_activation(config, "hidden_act", "silu");
  Architecture a = decoder(config, 1e-6, false);
  const bool attention_bias = config.flag("attention_bias", false);
  LayerShape layer;
  layer.attention = attention(config);
  layer.mlp.intermediate = config.size("intermediate_size", kMaxWidth);
  add_attention(a, layer, attention_bias, attention_bias);
  add_dense_mlp(a, layer, config.flag("mlp_bias", false));
  layer.norms = {"input_layernorm", "post_attention_layernorm"};
  a.layers.assign(a.layers.size(), layer);
  a.rope_tables = {
      rope_table(config, config.rope("", 1e4), layer.attention.rotary_dim, a.max_positions)};
  return a;
}

}  // namespace poros::arch
