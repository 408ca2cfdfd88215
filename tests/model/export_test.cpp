// SPDX-License-Identifier: Apache-2.0
// Checkpoints in bitsandbytes' format: what is written here is what bitsandbytes writes.
#include <set>

#include <gtest/gtest.h>

#include "base/files.hpp"
#include "model/export_base.hpp"
#include "model/open_base.hpp"
#include "model/safetensors.hpp"
#include "tests/model/goldens.hpp"

namespace poros {
namespace {

struct Pair {
  const char* base;
  const char* precision;
  const char* quantised;
};

class Export : public testing::TestWithParam<Pair> {};

TEST_P(Export, EqualsBitsandbytesFileByteForByte) {
  const test::TemporaryFolder folder;
  const auto base =
      open_base(test::golden(GetParam().base), GetParam().precision, folder.path() / "cache");
  const ModelConfig config = read_model_config(test::golden(GetParam().base));
  export_base(*base, config, folder.path() / "out");
  const std::string own = read_file(folder.path() / "out" / "model.safetensors");
  const std::string theirs = read_file(test::golden(GetParam().quantised) / "model.safetensors");
  ASSERT_EQ(own.size(), theirs.size());
  EXPECT_TRUE(own == theirs);
  EXPECT_EQ(read_model_config(folder.path() / "out").json(),
            read_model_config(test::golden(GetParam().quantised)).json());
}

INSTANTIATE_TEST_SUITE_P(All, Export,
                         testing::Values(Pair{"llama_bf16", "nf4", "llama_nf4_dq1"},
                                         Pair{"llama_bf16", "nf4-single", "llama_nf4_dq0"},
                                         Pair{"arch_gemma2", "nf4", "nf4_gemma2"},
                                         Pair{"arch_phi3", "nf4", "nf4_phi3"}),
                         [](const auto& test) { return std::string(test.param.quantised); });

TEST(ExportBase, SyntheticBaseComesBackWithTheSameBytes) {
  const test::TemporaryFolder folder;
  BaseRequest request;
  request.model = test::golden("arch_qwen2");
  request.synthetic = true;
  request.seed = 7;
  request.cache = folder.path() / "cache";
  const auto base = open_base(request);
  export_base(*base, read_model_config(request.model), folder.path() / "out");
  const auto again = open_base(folder.path() / "out", "nf4", request.cache);
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    ASSERT_EQ(base->layout(layer).bytes, again->layout(layer).bytes);
    std::vector<std::byte> a(base->layout(layer).bytes), b(a.size());
    base->read_layer(layer, a.data());
    again->read_layer(layer, b.data());
    EXPECT_EQ(a, b);
  }
}

TEST(ExportBase, PlainPrecisionGivesBackTheCheckpoint) {
  const test::TemporaryFolder folder;
  const auto base = open_base(test::golden("arch_qwen3"), "bf16", folder.path() / "cache");
  export_base(*base, read_model_config(test::golden("arch_qwen3")), folder.path() / "out");
  EXPECT_EQ(read_file(folder.path() / "out" / "model.safetensors"),
            read_file(test::golden("arch_qwen3") / "model.safetensors"));
}

TEST(ExportBase, ExpertsAreWrittenDequantised) {
  const test::TemporaryFolder folder;
  const auto base = open_base(test::golden("arch_mixtral"), "nf4", folder.path() / "cache");
  export_base(*base, read_model_config(test::golden("arch_mixtral")), folder.path() / "out");
  const Checkpoint written(folder.path() / "out");
  const Checkpoint::Found expert =
      written.at("model.layers.1.block_sparse_moe.experts.3.w2.weight");
  EXPECT_EQ(expert.tensor->type, TensorType::bf16);
  EXPECT_EQ(expert.tensor->shape, (std::vector<std::int64_t>{64, 96}));
  EXPECT_EQ(written.at("model.layers.0.self_attn.q_proj.weight").tensor->type, TensorType::u8);
}

}  // namespace
}  // namespace poros
