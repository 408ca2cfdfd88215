// SPDX-License-Identifier: Apache-2.0
#include <set>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "spec/expand.hpp"
#include "spec/spec_json.hpp"
#include "spec/spec_reader.hpp"

namespace poros {
namespace {

constexpr const char* kBase = R"(spec_id: matrix
hardware: [{gpu_name: RTX 3090}, {gpu_name: A100}]
models: [{model_id: org/small}, {model_id: org/large}]
methods: [poros, resident, peft]
training: {steps: 10, warmup_steps: 1, seq_len: 512}
)";

std::vector<CellSpec> cells_of(const std::string& more) {
  return expand(parse_spec(kBase + more, "spec.yaml", "/specs"));
}

std::string refusal(const std::string& more) {
  try {
    static_cast<void>(cells_of(more));
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::input);
    return error.what();
  }
  return "accepted";
}

TEST(Matrix, WithoutRulesTheProductAndItsKeysStayAsTheyWere) {
  EXPECT_EQ(cells_of("").size(), 12U);
  const Json json = spec_to_json(parse_spec(kBase, "spec.yaml", "/specs"));
  for (const char* name : {"sweep", "include", "overrides", "exclude"}) {
    EXPECT_FALSE(json.contains(name)) << name;
  }
}

TEST(Matrix, SweepsMultiplyAndAreToldApart) {
  const auto cells = cells_of("sweep: {training.seq_len: [512, 1024], poros.block_size: [1, 2]}\n");
  EXPECT_EQ(cells.size(), 4U * (2 * 4 + 2));  // peft does not read block_size
  std::set<std::string> keys, variants;
  for (const CellSpec& cell : cells) {
    EXPECT_TRUE(keys.insert(cell_key(cell)).second);
    if (cell.method == "peft") {
      EXPECT_EQ(cell.variant, "seq_len=" + std::to_string(cell.training.seq_len));
    } else {
      EXPECT_EQ(cell.variant, "block_size=" + std::to_string(cell.poros.block_size) +
                                  ", seq_len=" + std::to_string(cell.training.seq_len));
    }
  }
}

TEST(Matrix, CellsThatDifferOnlyInMethodShareAGroup) {
  const auto cells = cells_of("sweep: {training.seq_len: [512, 1024]}\n");
  std::map<std::string, std::set<std::string>> groups;
  for (const CellSpec& cell : cells) groups[group_key(cell)].insert(cell.method);
  EXPECT_EQ(groups.size(), 8U);
  for (const auto& [key, methods] : groups) EXPECT_EQ(methods.size(), 3U);
}

TEST(Matrix, OverridesChangeTheCellsThatMatchAlone) {
  const auto cells = cells_of(
      "overrides:\n"
      "  - match: {gpu: RTX 3090, model: large}\n"
      "    set: {training.batch_size: 2, lora.rank: 8}\n");
  for (const CellSpec& cell : cells) {
    const bool meant = cell.hardware.gpu_name == "RTX 3090" && cell.model.model_id == "org/large";
    EXPECT_EQ(cell.training.batch_size, meant ? 2 : 1);
    EXPECT_EQ(cell.lora.rank, meant ? 8 : 16);
    EXPECT_EQ(cell.variant, "");
  }
}

TEST(Matrix, IncludeAddsAndExcludeTakesAway) {
  const auto cells = cells_of(
      "include:\n"
      "  - match: {method: poros, gpu: A100}\n"
      "    set: {training.seq_len: 8192}\n"
      "exclude:\n"
      "  - {method: peft}\n"
      "  - {training.seq_len: 8192, model: small}\n");
  EXPECT_EQ(cells.size(), 8U + 1);
  EXPECT_EQ(cells.back().training.seq_len, 8192);
  EXPECT_EQ(cells.back().variant, "seq_len=8192");
}

TEST(Matrix, APeersKeyIsSetForThatPeerAlone) {
  const auto cells = cells_of("sweep: {peers.peft.gradient_checkpointing: [true, false]}\n");
  EXPECT_EQ(cells.size(), 4U * 4);
}

TEST(Matrix, TheRulesAreKeptInSpecJson) {
  const std::string more =
      "sweep: {training.seq_len: [512, 1024]}\n"
      "include: [{match: {method: poros}, set: {lora.rank: 4}}]\n"
      "overrides: [{match: {model: small}, set: {training.seed: 7}}]\n"
      "exclude: [{method: peft, precision: nf4}]\n";
  const BenchmarkSpec spec = parse_spec(kBase + more, "spec.yaml", "/specs");
  const Json json = spec_to_json(spec);
  EXPECT_EQ(spec_to_json(spec_from_json(json, "spec.json")), json);
  const Json plain = spec_to_json(parse_spec(kBase, "spec.yaml", "/specs"));
  EXPECT_NE(spec_sha256(json), spec_sha256(plain));
  EXPECT_FALSE(spec_differences(json, plain).empty());
}

TEST(Matrix, WhatCannotBeIsRefused) {
  EXPECT_NE(refusal("exclude: [{model: medium}]\n").find("exclude[0] matches no cell"),
            std::string::npos);
  EXPECT_NE(refusal("exclude: [{device_: x}]\n").find("no key that a cell can be chosen by"),
            std::string::npos);
  EXPECT_NE(refusal("exclude: [{method: poros}, {method: resident}, {method: peft}]\n")
                .find("leaves no cell"),
            std::string::npos);
  EXPECT_NE(refusal("sweep: {training.steps: [1, 20]}\n").find("not more than warmup_steps"),
            std::string::npos);
  EXPECT_NE(refusal("include: [{match: {method: poros}, set: {training.seq_len: 512}}]\n")
                .find("is asked for twice"),
            std::string::npos);
  std::string many = "sweep:\n";
  for (const char* key : {"training.seed", "lora.rank", "training.seq_len"}) {
    many += std::string("  ") + key + ": [";
    for (int i = 2; i < 102; ++i) many += std::to_string(i) + (i < 101 ? ", " : "]\n");
  }
  EXPECT_NE(refusal(many).find("cells; expected at most 100000"), std::string::npos);
}

TEST(Matrix, AnOlderSpecWithoutANewKeyIsTheSameSpec) {
  const Json now = spec_to_json(parse_spec(kBase, "spec.yaml", "/specs"));
  Json before = now;
  before["training"]["dataset"].erase("loss_on");
  before["poros"].erase("lean");
  EXPECT_TRUE(spec_differences(before, now).empty());
}

}  // namespace
}  // namespace poros
