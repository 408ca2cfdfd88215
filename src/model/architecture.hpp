// SPDX-License-Identifier: Apache-2.0
// What a decoder is, as data. One small file an architecture (model/arch_*.cpp) fills it from
// config.json; the trainer reads nothing else. Weights are [out, in], row-major, as in HF files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace poros {

enum class Activation { silu, gelu_tanh };

/// Inverse frequencies and attention factor of one rotary table.
struct RopeTable {
  std::vector<float> inv_freq;       // [rotary_dim / 2]
  std::vector<float> inv_freq_long;  // longrope: used when a row is longer than original_length
  std::int64_t original_length = 0;  // 0: inv_freq always
  float attention_factor = 1.0F;     // multiplies cos and sin
};

/// One linear of a decoder layer, named as in the checkpoint below the layer's prefix.
struct LinearShape {
  std::string name;  // "self_attn.q_proj", "mlp.experts.3.gate_proj"
  std::int64_t out = 0, in = 0;
  bool has_bias = false;
  bool quantised = true;  // false: router, kept in 16 bit
};

struct AttentionShape {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0, rotary_dim = 0;
  float scale = 0;          // of the scores, usually head_dim^-1/2
  float softcap = 0;        // c in c*tanh(s/c); 0: none
  std::int64_t window = 0;  // keys a query sees, itself included; 0: all earlier ones
  int rope_table = 0;       // index into Architecture::rope_tables
  bool qk_norm = false;     // RMSNorm over head_dim after projection, before rotary
  bool fused_qkv = false;   // one linear self_attn.qkv_proj, rows in the order q, k, v
};

struct MlpShape {
  Activation activation = Activation::silu;
  std::int64_t intermediate = 0;
  bool fused_gate_up = false;  // one linear mlp.gate_up_proj, rows in the order gate, up
  std::int64_t experts = 0;    // 0: dense
  std::int64_t experts_per_token = 0;
  bool normalise_top_k = false;
  std::string router;  // name of the router linear [experts, hidden]
};

struct LayerShape {
  AttentionShape attention;
  MlpShape mlp;
  /// In the order q, k, v, o (or qkv, o), then gate, up, down (or gate_up, down); for experts the
  /// router first, then gate, up, down of expert 0, of expert 1, ...
  std::vector<LinearShape> linears;
  std::vector<std::string> norms;  // names of norm weights, e.g. "input_layernorm"
};

struct Architecture {
  std::string model_type;    // "qwen2"
  std::string layer_prefix;  // "model.layers." + index + "." + name (+ ".weight")
  std::string embed_name, final_norm_name, head_name;  // whole tensor names
  std::string peft_prefix;                             // "base_model.model." + layer_prefix
  std::int64_t vocab = 0, hidden = 0;
  float rms_eps = 1e-6F;
  bool norm_plus_one = false;  // gemma: x * (1 + w)
  bool post_norms = false;     // gemma: norms on the outputs of attention and MLP as well
  float embed_scale = 1.0F;    // gemma: sqrt(hidden) rounded to the weights' dtype
  float final_softcap = 0;     // logits; 0: none
  bool tied_embeddings = false;
  std::int64_t max_positions = 0;
  std::vector<RopeTable> rope_tables;
  std::vector<LayerShape> layers;

  [[nodiscard]] std::int64_t layer_count() const {
    return static_cast<std::int64_t>(layers.size());
  }
};

}  // namespace poros
