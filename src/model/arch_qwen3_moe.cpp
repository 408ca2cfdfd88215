// SPDX-License-Identifier: Apache-2.0
#include <set>

#include "base/error.hpp"
#include "model/architectures.hpp"

namespace poros::arch {

/// Qwen3-MoE: Qwen3's attention; in each decoder_sparse_step-th layer experts with a router
/// (softmax over all experts, then the top k, renormalised where norm_topk_prob), elsewhere a dense
/// MLP.
Architecture qwen3_moe(const ModelConfig& config) {
  require_activation(config, "hidden_act", "silu");
  Architecture a = decoder(config, 1e-6, false);
  const bool attention_bias = config.flag("attention_bias", false);
  LayerShape base;
  base.attention = attention(config);
  base.attention.qk_norm = true;
  if (config.flag("use_sliding_window", false)) {
    base.attention.window = config.size("sliding_window", kMaxPositions, 4096);
  }
  add_attention(a, base, attention_bias, attention_bias);
  base.norms = {"input_layernorm", "post_attention_layernorm", "self_attn.q_norm",
                "self_attn.k_norm"};

  LayerShape dense = base;
  dense.mlp.intermediate = config.size("intermediate_size", kMaxWidth, 6144);
  add_dense_mlp(a, dense, false);

  LayerShape sparse = base;
  sparse.mlp.intermediate = config.size("moe_intermediate_size", kMaxWidth);
  sparse.mlp.experts =
      config.find_size("num_experts", kMaxExperts)
          .value_or(config.size("num_local_experts", kMaxExperts, 128));  // the newer spelling
  sparse.mlp.experts_per_token = config.size("num_experts_per_tok", sparse.mlp.experts, 8);
  sparse.mlp.normalise_top_k = config.flag("norm_topk_prob", false);
  add_experts(a, sparse, "mlp.", "gate_proj", "up_proj", "down_proj");

  std::set<std::int64_t> dense_layers;
  const auto list = config.json().find("mlp_only_layers");
  if (list != config.json().end() && !list->is_null()) {
    if (!list->is_array()) fail(Fault::input, "{}: mlp_only_layers is no list", config.origin());
    for (const Json& entry : *list) {
      if (!entry.is_number_integer()) {
        fail(Fault::input, "{}: mlp_only_layers must list layer numbers", config.origin());
      }
      dense_layers.insert(entry.get<std::int64_t>());
    }
  }
  const std::int64_t every = config.size("decoder_sparse_step", kMaxLayers, 1);
  for (std::int64_t i = 0; i < a.layer_count(); ++i) {
    const bool is_sparse = (i + 1) % every == 0 && !dense_layers.contains(i);
    a.layers[static_cast<std::size_t>(i)] = is_sparse ? sparse : dense;
  }
  a.rope_tables = {
      rope_table(config, config.rope("", 1e4), base.attention.rotary_dim, a.max_positions)};
  return a;
}

}  // namespace poros::arch
