// SPDX-License-Identifier: Apache-2.0
// A base without weights: what the planners read of one.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "model/adapter.hpp"
#include "model/base_store.hpp"

namespace poros {

/// A Qwen2-like decoder: hidden 64, 4 heads of 16 over 2 key/value heads, intermediate 96.
[[nodiscard]] inline Architecture small_architecture(std::int64_t layers) {
  Architecture architecture;
  architecture.model_type = "qwen2";
  architecture.vocab = 1000;
  architecture.hidden = 64;
  architecture.max_positions = 32768;
  architecture.rope_tables.resize(1);
  architecture.rope_tables[0].inv_freq.assign(8, 1.0F);
  LayerShape layer;
  layer.attention = {.heads = 4, .kv_heads = 2, .head_dim = 16, .rotary_dim = 16, .scale = 0.25F};
  layer.mlp.intermediate = 96;
  layer.linears = {{"self_attn.q_proj", 64, 64, true}, {"self_attn.k_proj", 32, 64, true},
                   {"self_attn.v_proj", 32, 64, true}, {"self_attn.o_proj", 64, 64},
                   {"mlp.gate_proj", 96, 64},          {"mlp.up_proj", 96, 64},
                   {"mlp.down_proj", 64, 96}};
  layer.norms = {"input_layernorm", "post_attention_layernorm"};
  architecture.layers.assign(static_cast<std::size_t>(layers), layer);
  return architecture;
}

class FakeBase final : public BaseStore {
 public:
  explicit FakeBase(Architecture architecture, std::uint64_t layer_bytes = 10000)
      : architecture_(std::move(architecture)) {
    layout_.bytes = layer_bytes;
  }
  [[nodiscard]] const Architecture& architecture() const override { return architecture_; }
  [[nodiscard]] std::string weights() const override { return "random(0)"; }
  [[nodiscard]] const LayerLayout& layout(std::int64_t) const override { return layout_; }
  void read_layer(std::int64_t, std::byte*) const override {}
  [[nodiscard]] EndTensor embedding() const override { return {}; }
  [[nodiscard]] EndTensor final_norm() const override { return {}; }
  [[nodiscard]] EndTensor head() const override { return {}; }
  [[nodiscard]] std::map<std::string, double> bytes_by_storage() const override { return {}; }

 private:
  Architecture architecture_;
  LayerLayout layout_;
};

/// Places of the named linears of one layer.
[[nodiscard]] inline std::vector<LoraPlace> places_of(const Architecture& architecture,
                                                      std::int64_t layer,
                                                      const std::vector<std::string>& linears,
                                                      std::int64_t rank) {
  std::vector<LoraPlace> places;
  for (const std::string& name : linears) {
    for (const LinearShape& linear : architecture.layers[static_cast<std::size_t>(layer)].linears) {
      if (linear.name != name) continue;
      places.push_back({layer, name, "layers." + std::to_string(layer) + "." + name, rank,
                        linear.in, linear.out, 2.0F});
    }
  }
  return places;
}

}  // namespace poros
