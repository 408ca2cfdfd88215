// SPDX-License-Identifier: Apache-2.0
#include "model/architectures.hpp"

namespace poros::arch {

/// The window of each layer in Qwen's way: none unless use_sliding_window; then in the layers that
/// layer_types names, or without that list from max_window_layers on.
void set_qwen_windows(const ModelConfig& config, Architecture& a) {
  if (!config.flag("use_sliding_window", false)) return;
  const std::int64_t window = config.size("sliding_window", kMaxPositions, 4096);
  const std::int64_t first =
      json_find<std::int64_t>(config.json(), "max_window_layers", config.origin()).value_or(28);
  const std::vector<bool> sliding = config.sliding_layers(a.layer_count());
  for (std::size_t i = 0; i < a.layers.size(); ++i) {
    const bool here = sliding.empty() ? static_cast<std::int64_t>(i) >= first : sliding[i];
    a.layers[i].attention.window = here ? window : 0;
  }
}

/// Qwen2 and Qwen2.5: Llama's layout with biases on q, k, v.
Architecture qwen2(const ModelConfig& config) {
  require_activation(config, "hidden_act", "silu");
  Architecture a = decoder(config, 1e-6, false);
  LayerShape layer;
  layer.attention = attention(config);
  layer.mlp.intermediate = config.size("intermediate_size", kMaxWidth);
  add_attention(a, layer, true, false);
  add_dense_mlp(a, layer, false);
  layer.norms = {"input_layernorm", "post_attention_layernorm"};
  a.layers.assign(a.layers.size(), layer);
  set_qwen_windows(config, a);
  a.rope_tables = {
      rope_table(config, config.rope("", 1e4), layer.attention.rotary_dim, a.max_positions)};
  return a;
}

}  // namespace poros::arch
