// SPDX-License-Identifier: Apache-2.0
// Adapters of experts. PEFT on transformers 5 names Mixtral's experts mlp.experts, as Qwen3-MoE's,
// where block_sparse_moe.experts was looked for; what was read of fused experts was written again
// under a configuration that still called it fused; and with rslora or patterns PEFT scaled our
// experts wrongly, and said nothing.
#include <cmath>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "model/adapter.hpp"
#include "model/architectures.hpp"
#include "model/safetensors.hpp"
#include "tests/model/goldens.hpp"

namespace poros {
namespace {

namespace fs = std::filesystem;

Architecture mixtral() {
  return read_architecture(read_model_config(test::golden("arch_mixtral")));
}

LoraSpec experts_of_mixtral() {
  LoraSpec lora;
  lora.rank = 4;
  lora.alpha = 8;
  lora.dropout = 0;
  lora.target_modules = {"w1", "w2", "w3"};
  return lora;
}

std::string refusal(const LoraSpec& lora) {
  try {
    (void)initial_adapter(mixtral(), lora, "x", 1);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

/// PEFT's file for rank 2 on 4 fused experts of hidden 64, intermediate 96.
void write_fused(const fs::path& folder) {
  std::vector<TensorToWrite> tensors;
  const auto add = [&](const std::string& name, std::int64_t rows, std::int64_t cols) {
    TensorToWrite tensor;
    tensor.name = name;
    tensor.type = TensorType::f32;
    tensor.shape = {rows, cols};
    std::vector<float> values(static_cast<std::size_t>(rows * cols));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 13) - 6;
    tensor.write = [values](const auto& put) { put(values.data(), values.size() * 4); };
    tensors.push_back(std::move(tensor));
  };
  for (const std::string layer : {"0", "1"}) {
    const std::string stem = "base_model.model.model.layers." + layer + ".mlp.experts.";
    add(stem + "base_layer.lora_A.weight", 4 * 2, 64);
    add(stem + "base_layer.lora_B.weight", 2 * 96, 4 * 2);
    add(stem + "lora_A.weight", 4 * 3, 96);
    add(stem + "lora_B.weight", 64, 4 * 3);
  }
  write_safetensors(folder / "adapter_model.safetensors", std::move(tensors));
  write_file_durably(folder / "adapter_config.json",
                     R"({"peft_type": "LORA", "peft_version": "0.21.2", "r": 3, "lora_alpha": 6,
                         "target_modules": [], "rank_pattern": {".*\\.gate_up_proj": 2},
                         "target_parameters": ["mlp.experts.gate_up_proj", "down_proj"]})");
}

TEST(ExpertAdapter, MixtralsFusedExpertsAreReadAndWrittenApart) {
  const test::TemporaryFolder fused, apart;
  write_fused(fused.path());
  const Adapter read = read_adapter(fused.path(), mixtral());
  ASSERT_EQ(read.places.size(), 2U * 4 * 3);
  EXPECT_EQ(read.places[0].linear, "block_sparse_moe.experts.0.w1");
  EXPECT_EQ(read.places[0].rank, 2);
  EXPECT_EQ(read.places[0].scale, 3.0F);  // the pattern is for the rank alone: 6 / 2
  EXPECT_EQ(read.places[2].rank, 3);
  EXPECT_EQ(read.places[2].scale, 2.0F);

  write_adapter(apart.path(), read);
  EXPECT_FALSE(read.config.contains("target_parameters"));
  const Adapter again = read_adapter(apart.path(), mixtral());
  ASSERT_EQ(again.places.size(), read.places.size());
  for (std::size_t i = 0; i < read.places.size(); ++i) {
    EXPECT_EQ(again.places[i].scale, read.places[i].scale);
    EXPECT_EQ(again.weights[i].a, read.weights[i].a);
    EXPECT_EQ(again.weights[i].b, read.weights[i].b);
  }
}

TEST(ExpertAdapter, ConfigurationSaysRankAndAlphaOfFusedExperts) {
  LoraSpec lora = experts_of_mixtral();
  // r and lora_alpha are enough: PEFT doubles both for gate_up.
  EXPECT_TRUE(initial_adapter(mixtral(), lora, "x", 1).config["rank_pattern"].empty());
  lora.use_rslora = true;
  const Json config = initial_adapter(mixtral(), lora, "x", 1).config;
  EXPECT_EQ(config["rank_pattern"]["mlp.experts.gate_up_proj"], 8);
  // alpha / sqrt(8) = 8 / sqrt(4)
  EXPECT_NEAR(config["alpha_pattern"]["mlp.experts.gate_up_proj"].get<double>(), 4 * std::sqrt(8.0),
              1e-12);
}

TEST(ExpertAdapter, WhatPeftCannotLoadIsRefused) {
  LoraSpec lora = experts_of_mixtral();
  EXPECT_EQ(refusal(lora), "accepted");
  lora.dropout = 0.05;
  EXPECT_NE(refusal(lora).find("lora.dropout"), std::string::npos) << refusal(lora);
  lora.dropout = 0;
  lora.target_modules = {"w1", "w2"};
  EXPECT_NE(refusal(lora).find("gate and up"), std::string::npos) << refusal(lora);
  lora.target_modules = {"experts.0.w2"};
  EXPECT_NE(refusal(lora).find("adapt all of them"), std::string::npos) << refusal(lora);
  lora.target_modules = {"w1", "w3"};
  lora.rank_pattern = {{"w1", 2}};
  EXPECT_NE(refusal(lora).find("one scale"), std::string::npos) << refusal(lora);
}

}  // namespace
}  // namespace poros
