// SPDX-License-Identifier: Apache-2.0
#include "model/architectures.hpp"

namespace poros::arch {

/// Mistral: Llama's layout, every layer with the sliding window where there is one. A query sees
/// sliding_window keys, itself included.
Architecture mistral(const ModelConfig& config) {
  require_activation(config, "hidden_act", "silu");
  Architecture a = decoder(config, 1e-6, false);
  LayerShape layer;
  layer.attention = attention(config);
  // Absent means the class default, null means none.
  const bool absent = !config.json().contains("sliding_window");
  layer.attention.window =
      absent ? 4096 : config.find_size("sliding_window", kMaxPositions).value_or(0);
  layer.mlp.intermediate = config.size("intermediate_size", kMaxWidth);
  add_attention(a, layer, false, false);
  add_dense_mlp(a, layer, false);
  layer.norms = {"input_layernorm", "post_attention_layernorm"};
  a.layers.assign(a.layers.size(), layer);
  a.rope_tables = {
      rope_table(config, config.rope("", 1e4), layer.attention.rotary_dim, a.max_positions)};
  return a;
}

}  // namespace poros::arch
