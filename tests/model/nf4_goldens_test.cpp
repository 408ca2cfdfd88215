// SPDX-License-Identifier: Apache-2.0
// Byte equality with what bitsandbytes 0.50.2 wrote into the committed checkpoints.
#include <cmath>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "base/json.hpp"
#include "kernels/nf4.hpp"
#include "model/safetensors.hpp"
#include "tests/model/goldens.hpp"

namespace poros {
namespace {

struct Pair {
  const char* base;       // 16-bit checkpoint
  const char* quantised;  // what bitsandbytes made of it
};

class Nf4Goldens : public testing::TestWithParam<Pair> {};

TEST_P(Nf4Goldens, CodesAndScalesAreEqual) {
  const Checkpoint base(test::golden(GetParam().base));
  const Checkpoint quantised(test::golden(GetParam().quantised));
  int compared = 0;
  for (const std::string& name : quantised.names()) {
    const std::string suffix = ".quant_state.bitsandbytes__nf4";
    if (!name.ends_with(suffix)) continue;
    ++compared;
    const std::string weight = name.substr(0, name.size() - suffix.size());
    const auto content = [&](const std::string& part) {
      const Checkpoint::Found found = quantised.at(weight + part);
      return found.file->read(*found.tensor);
    };
    const Json state = parse_json(content(suffix), name);
    const Checkpoint::Found source = base.at(weight);
    const std::string raw = source.file->read(*source.tensor);
    const std::int64_t n = source.tensor->elements(), blocks = nf4_blocks(n);
    std::string codes(static_cast<std::size_t>(nf4_code_bytes(n)), '\0');
    std::vector<float> absmax(static_cast<std::size_t>(blocks));
    nf4_quantise_bf16(reinterpret_cast<const Bf16*>(raw.data()), n,
                      reinterpret_cast<std::uint8_t*>(codes.data()), absmax.data());
    EXPECT_EQ(codes, content("")) << weight;
    if (!state.contains("nested_offset")) {
      const std::string expected = content(".absmax");
      ASSERT_EQ(expected.size(), absmax.size() * 4);
      EXPECT_EQ(std::memcmp(expected.data(), absmax.data(), expected.size()), 0) << weight;
      continue;
    }
    // The offset is a mean in another order of summing: equal to a few roundings, then with
    // bitsandbytes' own offset every byte is equal.
    const auto offset = state["nested_offset"].get<float>();
    const float own = nf4_absmax_offset(absmax.data(), blocks);
    EXPECT_NEAR(own, offset, 4 * std::nextafter(offset, 1.0F) - 4 * offset) << weight;
    std::string q(static_cast<std::size_t>(blocks), '\0');
    std::vector<float> nested(static_cast<std::size_t>(nf4_nested_blocks(n)));
    nf4_quantise_absmax(absmax.data(), blocks, offset, reinterpret_cast<std::uint8_t*>(q.data()),
                        nested.data());
    EXPECT_EQ(q, content(".absmax")) << weight;
    EXPECT_EQ(std::memcmp(nested.data(), content(".nested_absmax").data(), nested.size() * 4), 0)
        << weight;
  }
  EXPECT_GE(compared, 8);
}

INSTANTIATE_TEST_SUITE_P(
    All, Nf4Goldens,
    testing::Values(Pair{"llama_bf16", "llama_nf4_dq0"}, Pair{"llama_bf16", "llama_nf4_dq1"},
                    Pair{"arch_gemma2", "nf4_gemma2"}, Pair{"arch_phi3", "nf4_phi3"},
                    Pair{"arch_mixtral", "nf4_mixtral"}, Pair{"arch_qwen3_moe", "nf4_qwen3_moe"}),
    [](const auto& test) { return std::string(test.param.quantised); });

}  // namespace
}  // namespace poros
