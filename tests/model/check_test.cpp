// SPDX-License-Identifier: Apache-2.0
// Exact sizes of published models from their configurations alone.
#include "model/check.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "tests/model/goldens.hpp"

namespace poros {
namespace {

namespace fs = std::filesystem;

struct Published {
  const char* name;
  std::int64_t parameters;
};

class PublishedModels : public testing::TestWithParam<Published> {};

TEST_P(PublishedModels, ParameterCountIsExact) {
  const fs::path config = test::golden("configs") / (std::string(GetParam().name) + ".json");
  const CheckReport report = check_model(config.string());
  EXPECT_TRUE(report.supported) << report.status;
  EXPECT_EQ(report.parameters, GetParam().parameters);
  EXPECT_EQ(report.bytes_16bit, 2 * static_cast<std::uint64_t>(GetParam().parameters));
  EXPECT_EQ(report.checkpoint, "none");
  EXPECT_EQ(report.exit_code(), 0);
  std::int64_t sum = 0;
  for (const ModelPart& part : report.parts) sum += part.parameters;
  EXPECT_EQ(sum, report.parameters);
}

// The totals that the model cards' safetensors metadata give.
INSTANTIATE_TEST_SUITE_P(
    All, PublishedModels,
    testing::Values(
        Published{"Qwen2.5-0.5B", 494'032'768}, Published{"Qwen2.5-7B", 7'615'616'512},
        Published{"Qwen2.5-32B", 32'763'876'352}, Published{"Qwen2.5-72B", 72'706'203'648},
        Published{"Llama-3.1-8B", 8'030'261'248}, Published{"Llama-3.1-70B", 70'553'706'496},
        Published{"Qwen3-8B", 8'190'735'360}, Published{"Qwen3-30B-A3B", 30'532'122'624},
        Published{"Mistral-7B-v0.1", 7'241'732'096}, Published{"Mixtral-8x7B-v0.1", 46'702'792'704},
        Published{"gemma-2-2b", 2'614'341'888}, Published{"gemma-3-1b-pt", 999'885'952},
        Published{"gemma-3-4b-pt", 3'880'263'168}, Published{"phi-4", 14'659'507'200},
        Published{"Phi-3-mini-4k-instruct", 3'821'079'552}),
    [](const auto& test) {
      std::string name = test.param.name;
      for (char& c : name) {
        if (c == '.' || c == '-') c = '_';
      }
      return name;
    });

TEST(Check, SizesByPart) {
  const CheckReport r = check_model((test::golden("configs") / "Qwen2.5-7B.json").string());
  // 28 layers of q, k, v, o and gate, up, down.
  const std::int64_t linears =
      28 * (2 * 3584 * 3584 + 2 * 512 * 3584 + 3 * std::int64_t{3584} * 18944);
  EXPECT_EQ(r.linear_parameters, linears);
  EXPECT_EQ(r.active_parameters, r.parameters);
  // NF4: half a byte a value, a byte for each 64, four for each 64 * 256 of a tensor.
  std::uint64_t nf4 = 0;
  for (const std::int64_t n : {3584L * 3584, 3584L * 3584, 512L * 3584, 512L * 3584, 3584L * 18944,
                               3584L * 18944, 3584L * 18944}) {
    const std::int64_t blocks = n / 64;
    nf4 += 28 * static_cast<std::uint64_t>(n / 2 + blocks + 4 * ((blocks + 255) / 256));
  }
  const auto other = static_cast<std::uint64_t>(r.parameters - linears) * 2;
  EXPECT_EQ(r.bytes_nf4, nf4 + other);
  // Rank 16 on every linear: 16 * (in + out).
  const std::int64_t lora =
      28 * 16 * (2 * (3584 + 3584) + 2 * (3584 + 512) + 3 * std::int64_t{3584 + 18944});
  EXPECT_EQ(r.lora_parameters, lora);
}

TEST(Check, ExpertsCountWhatATokenUses) {
  LoraSpec lora;
  lora.rank = 8;
  const CheckReport r =
      check_model((test::golden("configs") / "Qwen3-30B-A3B.json").string(), "main", lora);
  const std::int64_t idle = 48 * std::int64_t{120} * 3 * 768 * 2048;
  EXPECT_EQ(r.active_parameters, r.parameters - idle);
  EXPECT_EQ(r.experts, 128);
  // By default attention alone is adapted.
  EXPECT_EQ(r.lora_parameters, 48 * 8 * ((2048 + 4096) * 2 + (2048 + 512) * 2));
}

TEST(Check, JsonAndTextSayTheSame) {
  const CheckReport r = check_model((test::golden("configs") / "Llama-3.1-8B.json").string());
  const Json json = to_json(r);
  EXPECT_EQ(json["parameters"], 8'030'261'248);
  EXPECT_EQ(json["supported"], true);
  const std::string text = to_text(r);
  EXPECT_NE(text.find("8,030,261,248"), std::string::npos) << text;
  EXPECT_NE(text.find("16.061 GB"), std::string::npos) << text;
}

TEST(Check, CheckpointIsLookedAt) {
  EXPECT_EQ(check_model(test::golden("llama_bf16").string()).checkpoint, "complete");
  EXPECT_EQ(check_model(test::golden("llama_nf4_dq1").string()).checkpoint,
            "quantised (bitsandbytes NF4)");
  const test::TemporaryFolder folder;
  fs::copy_file(test::golden("llama_bf16") / "config.json", folder.path() / "config.json");
  fs::copy_file(test::golden("arch_llama") / "model.safetensors",
                folder.path() / "model.safetensors");
  const CheckReport wrong = check_model(folder.path().string());
  EXPECT_NE(wrong.checkpoint.find("shape"), std::string::npos) << wrong.checkpoint;
  EXPECT_EQ(wrong.exit_code(), 1);
}

TEST(Check, UnknownArchitectureIsNamedWithTheKnownOnes) {
  const test::TemporaryFolder folder;
  write_file_durably(folder.path() / "config.json", R"({"model_type": "mamba"})");
  const CheckReport report = check_model(folder.path().string());
  EXPECT_FALSE(report.supported);
  EXPECT_EQ(report.exit_code(), 1);
  for (const char* name : {"mamba", "llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text",
                           "gemma3", "phi3", "qwen3_moe", "mixtral"}) {
    EXPECT_NE(report.status.find(name), std::string::npos) << name;
  }
  EXPECT_THROW(check_model((folder.path() / "nothing").string()), Error);
}

}  // namespace
}  // namespace poros
