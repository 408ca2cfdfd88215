// SPDX-License-Identifier: Apache-2.0
// Descriptions of architectures: both config dialects, and each field that the trainer reads.
#include "model/architectures.hpp"

#include <cmath>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "tests/model/goldens.hpp"

namespace poros {
namespace {

Architecture published(const std::string& name) {
  return read_architecture(read_model_config(test::golden("configs") / (name + ".json")));
}
Architecture golden_architecture(const std::string& name) {
  return read_architecture(read_model_config(test::golden(name)));
}
/// A golden's config with changes; null removes a key.
Architecture changed(const std::string& name, const Json& changes) {
  Json json = read_model_config(test::golden(name)).json();
  for (const auto& [key, value] : changes.items()) {
    if (value.is_null()) {
      json.erase(key);
    } else {
      json[key] = value;
    }
  }
  return read_architecture(ModelConfig(json, "config.json"));
}

TEST(Rope, TablesEqualTransformers) {
  const Json reference =
      parse_json(read_file(test::golden("rope_reference.json")), "rope_reference.json");
  ASSERT_EQ(reference.size(), 5U);
  for (const auto& [path, expected] : reference.items()) {
    const Architecture a = golden_architecture(path);
    std::vector<std::vector<float>> tables;
    for (const RopeTable& table : a.rope_tables) {
      tables.push_back(table.inv_freq);
      if (!table.inv_freq_long.empty()) tables.push_back(table.inv_freq_long);
    }
    ASSERT_EQ(tables.size(), expected["tables"].size()) << path;
    for (std::size_t t = 0; t < tables.size(); ++t) {
      ASSERT_EQ(tables[t].size(), expected["tables"][t].size()) << path;
      for (std::size_t i = 0; i < tables[t].size(); ++i) {
        const auto value = expected["tables"][t][i].get<float>();
        // Its power function may be off by a rounding.
        EXPECT_NEAR(tables[t][i], value, 2.5e-7 * value) << path << " " << t << " " << i;
      }
    }
    EXPECT_FLOAT_EQ(a.rope_tables[0].attention_factor, expected["attention_factor"].get<float>());
  }
}

TEST(Dialects, OldAndNewKeysSayTheSame) {
  const Json old = {{"rope_parameters", nullptr},
                    {"rope_theta", 5000.0},
                    {"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}};
  const Json fresh = {
      {"rope_parameters", {{"rope_theta", 5000.0}, {"rope_type", "linear"}, {"factor", 2.0}}}};
  EXPECT_EQ(changed("arch_llama", old).rope_tables[0].inv_freq,
            changed("arch_llama", fresh).rope_tables[0].inv_freq);
  EXPECT_FLOAT_EQ(changed("arch_llama", fresh).rope_tables[0].inv_freq[0], 0.5F);

  const Json old_gemma = {{"rope_parameters", nullptr},
                          {"layer_types", nullptr},
                          {"rope_theta", 1e6},
                          {"rope_local_base_freq", 1e4},
                          {"_sliding_window_pattern", nullptr},
                          {"sliding_window_pattern", 2}};
  const Architecture a = changed("arch_gemma3_text", old_gemma);
  const Architecture b = golden_architecture("arch_gemma3_text");
  EXPECT_EQ(a.rope_tables[0].inv_freq, b.rope_tables[0].inv_freq);
  EXPECT_EQ(a.rope_tables[1].inv_freq, b.rope_tables[1].inv_freq);
  EXPECT_NE(a.rope_tables[0].inv_freq, a.rope_tables[1].inv_freq);
  EXPECT_GT(a.layers[0].attention.window, 0);
  EXPECT_EQ(a.layers[1].attention.window, 0);
  EXPECT_EQ(a.layers[0].attention.rope_table, 1);
  EXPECT_EQ(a.layers[1].attention.rope_table, 0);

  const Json moe = {{"num_local_experts", nullptr}, {"num_experts", 4}};
  EXPECT_EQ(changed("arch_qwen3_moe", moe).layers[0].mlp.experts, 4);
  const Json phi = {{"rope_parameters", nullptr}, {"partial_rotary_factor", 0.5}};
  EXPECT_EQ(changed("arch_phi3", phi).layers[0].attention.rotary_dim, 8);
  EXPECT_EQ(changed("arch_llama", {{"head_dim", nullptr}}).layers[0].attention.head_dim, 16);
}

TEST(Descriptions, Llama) {
  const Architecture a = published("Llama-3.1-8B");
  EXPECT_EQ(a.layer_count(), 32);
  EXPECT_EQ(a.layers[0].attention.kv_heads, 8);
  EXPECT_FLOAT_EQ(a.layers[0].attention.scale, 1 / std::sqrt(128.0F));
  EXPECT_FLOAT_EQ(a.rms_eps, 1e-5F);
  EXPECT_EQ(a.head_name, "lm_head.weight");
  EXPECT_EQ(a.peft_prefix, "base_model.model.model.layers.");
  const Architecture biased = changed("arch_llama", {{"attention_bias", true}, {"mlp_bias", true}});
  for (const LinearShape& linear : biased.layers[0].linears) EXPECT_TRUE(linear.has_bias);
  const Architecture tied = changed("arch_llama", {{"tie_word_embeddings", true}});
  EXPECT_EQ(tied.head_name, tied.embed_name);
}

TEST(Descriptions, MistralWindow) {
  EXPECT_EQ(published("Mistral-7B-v0.1").layers[31].attention.window, 4096);
  EXPECT_EQ(changed("arch_mistral", {{"sliding_window", 7}}).layers[0].attention.window, 7);
  Json json = read_model_config(test::golden("arch_mistral")).json();
  json["sliding_window"] = nullptr;  // none; absent means the class default
  EXPECT_EQ(read_architecture(ModelConfig(json, "x")).layers[0].attention.window, 0);
  json.erase("sliding_window");
  EXPECT_EQ(read_architecture(ModelConfig(json, "x")).layers[0].attention.window, 4096);
}

TEST(Descriptions, QwenBiasesAndWindows) {
  const Architecture a = published("Qwen2.5-7B");
  const auto& linears = a.layers[3].linears;
  EXPECT_TRUE(linears[0].has_bias && linears[1].has_bias && linears[2].has_bias);
  EXPECT_FALSE(linears[3].has_bias || linears[4].has_bias);
  EXPECT_EQ(a.layers[27].attention.window, 0);  // use_sliding_window is false
  const Architecture windowed = changed("arch_qwen2", {{"use_sliding_window", true},
                                                       {"sliding_window", 9},
                                                       {"layer_types", nullptr},
                                                       {"max_window_layers", 1}});
  EXPECT_EQ(windowed.layers[0].attention.window, 0);
  EXPECT_EQ(windowed.layers[1].attention.window, 9);
  const Architecture listed =
      changed("arch_qwen2", {{"use_sliding_window", true},
                             {"sliding_window", 9},
                             {"layer_types", {"sliding_attention", "full_attention"}}});
  EXPECT_EQ(listed.layers[0].attention.window, 9);
  EXPECT_EQ(listed.layers[1].attention.window, 0);
}

TEST(Descriptions, Qwen3HeadsOfTheirOwnSize) {
  const Architecture a = golden_architecture("arch_qwen3");
  EXPECT_TRUE(a.layers[0].attention.qk_norm);
  EXPECT_EQ(a.layers[0].linears[3].in, 128);  // 4 heads of 32, hidden 64
  EXPECT_EQ(norm_size(a, a.layers[0], "self_attn.q_norm"), 32);
  EXPECT_EQ(norm_size(a, a.layers[0], "input_layernorm"), 64);
}

TEST(Descriptions, Gemma2) {
  const Architecture a = published("gemma-2-2b");
  EXPECT_TRUE(a.norm_plus_one && a.post_norms && a.tied_embeddings);
  EXPECT_FLOAT_EQ(a.embed_scale, 48.0F);
  EXPECT_FLOAT_EQ(a.final_softcap, 30.0F);
  EXPECT_FLOAT_EQ(a.layers[0].attention.softcap, 50.0F);
  EXPECT_FLOAT_EQ(a.layers[0].attention.scale, 1.0F / 16);
  EXPECT_EQ(a.layers[0].attention.window, 4096);
  EXPECT_EQ(a.layers[1].attention.window, 0);
  EXPECT_EQ(a.layers[0].mlp.activation, Activation::gelu_tanh);
  EXPECT_EQ(a.layers[0].norms.size(), 4U);
  Json json = read_model_config(test::golden("arch_gemma2")).json();
  json["attn_logit_softcapping"] = nullptr;  // null is none, absent the class default
  EXPECT_EQ(read_architecture(ModelConfig(json, "x")).layers[0].attention.softcap, 0);
  json.erase("attn_logit_softcapping");
  EXPECT_EQ(read_architecture(ModelConfig(json, "x")).layers[0].attention.softcap, 50);
}

TEST(Descriptions, Gemma3TextAndNested) {
  const Architecture small = published("gemma-3-1b-pt");
  EXPECT_EQ(small.layers[4].attention.window, 512);
  EXPECT_EQ(small.layers[5].attention.window, 0);
  EXPECT_EQ(small.layers[0].attention.softcap, 0);
  EXPECT_EQ(small.layers[0].norms.size(), 6U);
  const Architecture nested = published("gemma-3-4b-pt");
  EXPECT_EQ(nested.layer_count(), 34);
  EXPECT_EQ(nested.vocab, 262208);  // from the class, the config being sparse
  EXPECT_EQ(nested.layers[0].attention.heads, 8);
  EXPECT_EQ(nested.layer_prefix, "model.language_model.layers.");
  EXPECT_EQ(nested.head_name, nested.embed_name);
}

TEST(Descriptions, NestedKeysAreFoundInBothSpellings) {
  Json json = {{"model_type", "gemma3"},
               {"text_config", read_model_config(test::golden("arch_gemma3_text")).json()}};
  const ModelConfig config(json, "config.json");
  const SafetensorsFile source(test::golden("arch_gemma3_text") / "model.safetensors");
  for (const std::string prefix : {"model.language_model.", "language_model.model."}) {
    const test::TemporaryFolder folder;
    std::vector<TensorToWrite> tensors;
    for (const auto& [name, info] : source.tensors()) {
      TensorToWrite t;
      t.name = prefix + name.substr(std::string("model.").size());
      t.type = info.type;
      t.shape = info.shape;
      t.write = [&source, &info](const auto& put) {
        const std::string content = source.read(info);
        put(content.data(), content.size());
      };
      tensors.push_back(std::move(t));
    }
    write_safetensors(folder.path() / "model.safetensors", std::move(tensors));
    const Checkpoint checkpoint(folder.path());
    Architecture a = read_architecture(config);
    match_names(a, checkpoint);
    EXPECT_EQ(a.layer_prefix, prefix + "layers.");
    EXPECT_TRUE(checkpoint.find(a.embed_name) && checkpoint.find(a.head_name) &&
                checkpoint.find(a.final_norm_name));
    EXPECT_TRUE(checkpoint.find(a.layer_prefix + "1.self_attn.k_norm.weight"));
  }
}

TEST(Descriptions, PhiFusedAndPartial) {
  const Architecture a = published("phi-4");
  EXPECT_TRUE(a.layers[0].attention.fused_qkv && a.layers[0].mlp.fused_gate_up);
  EXPECT_EQ(a.layers[0].linears[0].out, (40 + 2 * 10) * 128);
  EXPECT_EQ(a.layers[0].linears[2].out, 2 * 17920);
  EXPECT_EQ(published("Phi-3-mini-4k-instruct").layers[0].attention.window, 2047);
  const Architecture longrope = golden_architecture("checkpoints/phi3_longrope_short");
  EXPECT_GT(longrope.rope_tables[0].original_length, 0);
  EXPECT_LT(longrope.layers[0].attention.rotary_dim, longrope.layers[0].attention.head_dim);
}

TEST(Descriptions, Experts) {
  const Architecture a = published("Qwen3-30B-A3B");
  EXPECT_EQ(a.layers[0].mlp.router, "mlp.gate");
  EXPECT_EQ(a.layers[0].mlp.experts_per_token, 8);
  EXPECT_TRUE(a.layers[0].mlp.normalise_top_k);
  ASSERT_EQ(a.layers[0].linears.size(), 4U + 1 + 3 * 128);
  EXPECT_FALSE(a.layers[0].linears[4].quantised);
  EXPECT_EQ(a.layers[0].linears[7].name, "mlp.experts.0.down_proj");
  EXPECT_EQ(a.layers[0].linears[8].name, "mlp.experts.1.gate_proj");
  const Architecture dense = changed("arch_qwen3_moe", {{"mlp_only_layers", {1}}});
  EXPECT_EQ(dense.layers[0].mlp.experts, 4);
  EXPECT_EQ(dense.layers[1].mlp.experts, 0);
  EXPECT_EQ(dense.layers[1].mlp.intermediate, 96);
  const Architecture every = changed("arch_qwen3_moe", {{"decoder_sparse_step", 2}});
  EXPECT_EQ(every.layers[0].mlp.experts, 0);
  EXPECT_EQ(every.layers[1].mlp.experts, 4);
  const Architecture mixtral = golden_architecture("arch_mixtral");
  EXPECT_TRUE(mixtral.layers[0].mlp.normalise_top_k);
  EXPECT_EQ(mixtral.layers[0].linears[5].name, "block_sparse_moe.experts.0.w1");
  EXPECT_EQ(mixtral.layers[0].linears[6].name, "block_sparse_moe.experts.0.w3");
  EXPECT_EQ(mixtral.layers[0].linears[7].name, "block_sparse_moe.experts.0.w2");
}

}  // namespace
}  // namespace poros
