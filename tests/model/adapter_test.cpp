// SPDX-License-Identifier: Apache-2.0
#include "model/adapter.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "model/architectures.hpp"
#include "model/name_pattern.hpp"
#include "model/safetensors.hpp"
#include "tests/model/goldens.hpp"

namespace poros {
namespace {

namespace fs = std::filesystem;

Architecture architecture(const std::string& name) {
  return read_architecture(read_model_config(test::golden(name)));
}

std::vector<std::string> linears_of(const std::vector<LoraPlace>& places, std::int64_t layer) {
  std::vector<std::string> names;
  for (const LoraPlace& place : places) {
    if (place.layer == layer) names.push_back(place.linear);
  }
  return names;
}

TEST(LoraPlaces, DefaultIsEveryLinearInOrder) {
  const auto places = lora_places(architecture("arch_llama"), {});
  ASSERT_EQ(places.size(), 14U);
  EXPECT_EQ(linears_of(places, 1),
            (std::vector<std::string>{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                      "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
                                      "mlp.down_proj"}));
  EXPECT_EQ(places[7].peft_name, "base_model.model.model.layers.1.self_attn.q_proj");
  EXPECT_EQ(places[13].in, 96);
  EXPECT_EQ(places[13].out, 64);
  EXPECT_FLOAT_EQ(places[0].scale, 2.0F);
  LoraSpec all;
  all.target_modules = {"all-linear"};
  EXPECT_EQ(lora_places(architecture("arch_llama"), all).size(), 14U);
}

TEST(LoraPlaces, FusedProjectionsAreOneLinear) {
  EXPECT_EQ(linears_of(lora_places(architecture("arch_phi3"), {}), 0),
            (std::vector<std::string>{"self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj",
                                      "mlp.down_proj"}));
}

TEST(LoraPlaces, ExpertsOnlyByChoiceAndTheRouterNever) {
  const Architecture moe = architecture("arch_qwen3_moe");
  EXPECT_EQ(lora_places(moe, {}).size(), 2U * 4);
  LoraSpec lora;
  lora.target_modules = {"q_proj", "down_proj"};
  EXPECT_EQ(lora_places(moe, lora).size(), 2U * (1 + 4));
  lora.target_modules = {"gate"};
  EXPECT_THROW((void)lora_places(moe, lora), Error);
}

TEST(LoraPlaces, TargetsMatchWholePartsOfNames) {
  const Architecture a = architecture("arch_llama");
  LoraSpec lora;
  lora.target_modules = {"self_attn.q_proj", "model.layers.1.mlp.up_proj"};
  const auto places = lora_places(a, lora);
  ASSERT_EQ(places.size(), 3U);
  EXPECT_EQ(places[2].linear, "mlp.up_proj");
  EXPECT_EQ(places[2].layer, 1);
  lora.target_modules = {"proj"};
  try {
    (void)lora_places(a, lora);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("gate_proj"), std::string::npos) << error.what();
  }
}

TEST(LoraPlaces, PatternsAndRslora) {
  LoraSpec lora;
  lora.rank = 8;
  lora.alpha = 16;
  lora.rank_pattern = {{"q_proj", 4}, {"layers.1.self_attn.o_proj", 2}};
  lora.alpha_pattern = {{"q_proj", 3}};
  const Architecture a = architecture("arch_llama");
  auto places = lora_places(a, lora);
  EXPECT_EQ(places[0].rank, 4);
  EXPECT_FLOAT_EQ(places[0].scale, 0.75F);
  EXPECT_EQ(places[3].rank, 8);
  EXPECT_EQ(places[10].rank, 2);
  EXPECT_FLOAT_EQ(places[10].scale, 8.0F);
  lora.use_rslora = true;
  places = lora_places(a, lora);
  EXPECT_FLOAT_EQ(places[3].scale, 16.0F / std::sqrt(8.0F));
  lora.rank_pattern["layers.0.self_attn.q_proj"] = 5;
  EXPECT_THROW((void)lora_places(a, lora), Error);  // two keys fit, which first is not known
}

TEST(PatternKeys, MatchLikePefts) {
  // Python: bool(re.match(rf"(.*\.)?({key})$", "model.layers.11.self_attn.q_proj"))
  const std::string name = "model.layers.11.self_attn.q_proj";
  const std::vector<std::pair<const char*, bool>> keys = {
      {"q_proj", true},
      {"self_attn.q_proj", true},
      {"attn.q_proj", false},
      {"layers.1.self_attn.q_proj", false},
      {"^model.layers.11.self_attn.q_proj", true},
      {"^layers.11.self_attn.q_proj", false},
      {".*q_proj", true},
      {"layers\\.1\\..*q_proj", false},
      {"layers\\.1.\\..*q_proj", true},
      {"layers\\.(1|11)\\.self_attn\\.(q|k)_proj", true},
      {"q_proj|nothing", true},
      {"nothing|11", false},
      {"(?!layers\\.0).*q_proj", true},
      {"self_attn", false},
      {"Q_PROJ", false},
      {"(?i:Q_PROJ)", true},
      {"[qk]_proj$", true},
      {"\\w+", true},
      {"", false},
  };
  for (const auto& [key, fits] : keys) {
    EXPECT_EQ(pattern_fits(key, name, "rank_pattern"), fits) << key;
  }
}

TEST(InitialAdapter, IsKaimingUniformZeroAndSeeded) {
  const Architecture a = architecture("arch_llama");
  LoraSpec lora;
  lora.rank = 64;
  const Adapter adapter = initial_adapter(a, lora, "org/model", 5);
  std::set<float> first_values;
  for (std::size_t i = 0; i < adapter.places.size(); ++i) {
    const double bound = 1 / std::sqrt(static_cast<double>(adapter.places[i].in));
    double sum = 0, squares = 0;
    for (const float v : adapter.weights[i].a) {
      ASSERT_LE(std::abs(v), bound);
      sum += v;
      squares += static_cast<double>(v) * v;
    }
    const auto n = static_cast<double>(adapter.weights[i].a.size());
    EXPECT_NEAR(sum / n / bound, 0, 0.05);
    EXPECT_NEAR(squares / n / (bound * bound), 1.0 / 3, 0.02);
    for (const float v : adapter.weights[i].b) ASSERT_EQ(v, 0.0F);
    EXPECT_TRUE(first_values.insert(adapter.weights[i].a[0]).second);
  }
  EXPECT_EQ(initial_adapter(a, lora, "x", 5).weights[3].a, adapter.weights[3].a);
  EXPECT_NE(initial_adapter(a, lora, "x", 6).weights[3].a, adapter.weights[3].a);
  // A place's values don't depend on which others are adapted.
  lora.target_modules = {"o_proj"};
  EXPECT_EQ(initial_adapter(a, lora, "x", 5).weights[0].a, adapter.weights[3].a);
}

TEST(Adapter, WrittenIsReadBack) {
  const test::TemporaryFolder folder;
  for (const char* name : {"arch_llama", "arch_phi3", "arch_qwen3_moe", "arch_mixtral"}) {
    const Architecture a = architecture(name);
    LoraSpec lora;
    lora.rank = 4;
    lora.alpha = 6.5;
    lora.use_rslora = true;
    lora.rank_pattern = {{"o_proj", 2}};
    Adapter adapter = initial_adapter(a, lora, "org/model", 1);
    for (auto& weights : adapter.weights) {
      for (std::size_t i = 0; i < weights.b.size(); ++i)
        weights.b[i] = 0.25F * static_cast<float>(i);
    }
    const std::string sha256 = write_adapter(folder.path() / name, adapter);
    const Adapter read = read_adapter(folder.path() / name, a);
    EXPECT_EQ(read.sha256, sha256);
    EXPECT_EQ(read.config, adapter.config);
    ASSERT_EQ(read.places.size(), adapter.places.size());
    for (std::size_t i = 0; i < read.places.size(); ++i) {
      EXPECT_EQ(read.places[i].peft_name, adapter.places[i].peft_name);
      EXPECT_EQ(read.places[i].rank, adapter.places[i].rank);
      EXPECT_EQ(read.places[i].scale, adapter.places[i].scale);
      EXPECT_EQ(read.weights[i].a, adapter.weights[i].a);
      EXPECT_EQ(read.weights[i].b, adapter.weights[i].b);
    }
  }
}

TEST(Adapter, PeftsOwnFileIsReadAndWrittenAgain) {
  const Architecture a = architecture("arch_llama");
  const Adapter adapter = read_adapter(test::golden("peft_llama"), a);
  ASSERT_EQ(adapter.places.size(), 14U);
  EXPECT_EQ(adapter.places[0].rank, 8);
  EXPECT_FLOAT_EQ(adapter.places[0].scale, 2.0F);
  const SafetensorsFile file(test::golden("peft_llama") / "adapter_model.safetensors");
  const std::string raw =
      file.read(file.tensors().at("base_model.model.model.layers.1.mlp.down_proj.lora_A.weight"));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(adapter.weights[13].a.data()), raw.size()),
            raw);
  const test::TemporaryFolder folder;
  write_adapter(folder.path(), adapter);
  EXPECT_EQ(read_file(folder.path() / "adapter_model.safetensors"), read_file(file.path()));
}

TEST(Adapter, FusedExpertsAreSplit) {
  const Architecture moe = architecture("arch_qwen3_moe");
  // PEFT's file with other values, since a fresh adapter's B is zero.
  const test::TemporaryFolder folder;
  fs::copy_file(test::golden("peft_moe") / "adapter_config.json",
                folder.path() / "adapter_config.json");
  const SafetensorsFile source(test::golden("peft_moe") / "adapter_model.safetensors");
  std::vector<TensorToWrite> tensors;
  for (const auto& [name, info] : source.tensors()) {
    std::vector<float> content(static_cast<std::size_t>(info.elements()));
    for (std::size_t i = 0; i < content.size(); ++i) {
      content[i] = static_cast<float>(static_cast<int>(i * 7 % 31) - 15);
    }
    TensorToWrite t;
    t.name = name;
    t.type = info.type;
    t.shape = info.shape;
    t.write = [content](const auto& put) { put(content.data(), content.size() * 4); };
    tensors.push_back(std::move(t));
  }
  write_safetensors(folder.path() / "adapter_model.safetensors", std::move(tensors));
  const Adapter adapter = read_adapter(folder.path(), moe);
  ASSERT_EQ(adapter.places.size(), 2U * (1 + 4 * 3));
  EXPECT_EQ(adapter.places[1].linear, "mlp.experts.0.gate_proj");
  EXPECT_EQ(adapter.places[12].linear, "mlp.experts.3.down_proj");
  const SafetensorsFile file(folder.path() / "adapter_model.safetensors");
  const auto values = [&](const std::string& name) {
    const std::string raw =
        file.read(file.tensors().at("base_model.model.model.layers.1.mlp." + name));
    std::vector<float> all(raw.size() / 4);
    std::memcpy(all.data(), raw.data(), raw.size());
    return all;
  };
  const std::int64_t experts = 4, rank = 4, hidden = 64, inner = 48;
  const auto gate_up_a = values("experts.base_layer.lora_A.weight");
  const auto gate_up_b = values("experts.base_layer.lora_B.weight");
  const auto down_a = values("experts.lora_A.weight");
  const auto down_b = values("experts.lora_B.weight");
  // delta[e][o][i] = sum over r of B[o][r][e] * A[e][r][i], in PEFT's layouts and in ours.
  const auto fused = [&](const auto& a, const auto& b, std::int64_t e, std::int64_t o,
                         std::int64_t i, std::int64_t in) {
    double sum = 0;
    for (std::int64_t r = 0; r < rank; ++r) {
      sum += static_cast<double>(b[static_cast<std::size_t>((o * rank + r) * experts + e)]) *
             a[static_cast<std::size_t>((e * rank + r) * in + i)];
    }
    return sum;
  };
  double largest = 0;
  for (std::size_t p = 14; p < adapter.places.size(); ++p) {
    const LoraPlace& place = adapter.places[p];
    const auto e = static_cast<std::int64_t>((p - 14) / 3);
    const auto part = static_cast<std::int64_t>((p - 14) % 3);
    EXPECT_EQ(place.rank, rank);
    for (std::int64_t o = 0; o < place.out; ++o) {
      for (std::int64_t i = 0; i < place.in; ++i) {
        double own = 0;
        for (std::int64_t r = 0; r < rank; ++r) {
          own += static_cast<double>(adapter.weights[p].b[static_cast<std::size_t>(o * rank + r)]) *
                 adapter.weights[p].a[static_cast<std::size_t>(r * place.in + i)];
        }
        const double expected = part == 2
                                    ? fused(down_a, down_b, e, o, i, inner)
                                    : fused(gate_up_a, gate_up_b, e, part * inner + o, i, hidden);
        ASSERT_EQ(own, expected) << place.linear;
        largest = std::max(largest, std::abs(own));
      }
    }
  }
  EXPECT_GT(largest, 0);
}

TEST(Adapter, UnsupportedKindsAreNamed) {
  const Architecture a = architecture("arch_llama");
  const auto refusal = [&](const char* name, const Architecture& model) {
    try {
      (void)read_adapter(test::golden(name), model);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_NE(refusal("peft_llama_dora", a).find("DoRA"), std::string::npos);
  EXPECT_NE(refusal("peft_llama_emb", a).find("embedding"), std::string::npos);
  EXPECT_NE(refusal("peft_llama_mts", a).find("modules_to_save"), std::string::npos);
  EXPECT_NE(refusal("peft_llama", architecture("arch_phi3")).find("fits no linear"),
            std::string::npos);
}

}  // namespace
}  // namespace poros
