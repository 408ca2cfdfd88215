// SPDX-License-Identifier: Apache-2.0
#include "model/architectures.hpp"

namespace poros::arch {

/// Mixtral: Mistral's attention; experts named w1 (gate), w3 (up), w2 (down); softmax over all
/// experts, the top k, always renormalised.
Architecture mixtral(const ModelConfig& config) {
  require_activation(config, "hidden_act", "silu");
  Architecture a = decoder(config, 1e-5, false);
  LayerShape layer;
  layer.attention = attention(config);
  layer.attention.window = config.find_size("sliding_window", kMaxPositions).value_or(0);
  layer.mlp.intermediate = config.size("intermediate_size", kMaxWidth);
  layer.mlp.experts = config.find_size("num_local_experts", kMaxExperts)
                          .value_or(config.size("num_experts", kMaxExperts, 8));
  layer.mlp.experts_per_token = config.size("num_experts_per_tok", layer.mlp.experts, 2);
  layer.mlp.normalise_top_k = true;
  add_attention(a, layer, false, false);
  add_experts(a, layer, "block_sparse_moe.", "w1", "w3", "w2");
  layer.norms = {"input_layernorm", "post_attention_layernorm"};
  a.layers.assign(a.layers.size(), layer);
  a.rope_tables = {
      rope_table(config, config.rope("", 1e6), layer.attention.rotary_dim, a.max_positions)};
  return a;
}

}  // namespace poros::arch
