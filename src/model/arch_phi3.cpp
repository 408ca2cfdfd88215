// SPDX-License-Identifier: Apache-2.0
#include "base/error.hpp"
#include "model/architectures.hpp"

namespace poros::arch {

/// Phi-3, Phi-4, Phi-4-mini: q, k, v in one linear, gate and up in one; longrope; the first
/// partial_rotary_factor of each head is rotated.
Architecture phi3(const ModelConfig& config) {
  require_activation(config, "hidden_act", "silu");
  Architecture a = decoder(config, 1e-5, false);
  LayerShape layer;
  AttentionShape& shape = layer.attention;
  shape = attention(config);
  shape.fused_qkv = true;
  shape.window = config.find_size("sliding_window", kMaxPositions).value_or(0);
  layer.mlp.intermediate = config.size("intermediate_size", kMaxWidth);
  layer.mlp.fused_gate_up = true;
  layer.linears = {{"self_attn.qkv_proj", (shape.heads + 2 * shape.kv_heads) * shape.head_dim,
                    a.hidden, false, true},
                   {"self_attn.o_proj", a.hidden, shape.heads * shape.head_dim, false, true},
                   {"mlp.gate_up_proj", 2 * layer.mlp.intermediate, a.hidden, false, true},
                   {"mlp.down_proj", a.hidden, layer.mlp.intermediate, false, true}};
  layer.norms = {"input_layernorm", "post_attention_layernorm"};

  Json rope = config.rope("", 1e4);
  // The first longrope files called it "yarn".
  if (rope["rope_type"] == "yarn") rope["rope_type"] = "longrope";
  if (!rope.contains("original_max_position_embeddings")) {
    rope["original_max_position_embeddings"] = 4096;
  }
  const double partial =
      json_find<double>(rope, "partial_rotary_factor", config.origin()).value_or(1.0);
  if (!(partial > 0 && partial <= 1)) {
    fail(Fault::input, "{}: partial_rotary_factor must be above 0 and at most 1", config.origin());
  }
  shape.rotary_dim = static_cast<std::int64_t>(static_cast<double>(shape.head_dim) * partial);
  a.layers.assign(a.layers.size(), layer);
  a.rope_tables = {rope_table(config, rope, shape.rotary_dim, a.max_positions)};
  return a;
}

}  // namespace poros::arch
