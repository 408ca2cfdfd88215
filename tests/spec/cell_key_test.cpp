// SPDX-License-Identifier: Apache-2.0
// Cell keys must not change between releases: the hashes here were computed with Python's hashlib
// from the texts beside them.
#include <set>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "spec/expand.hpp"
#include "spec/spec_reader.hpp"

namespace poros {
namespace {

CellSpec plain_cell(const std::string& method) {
  CellSpec cell;
  cell.method = method;
  cell.model.model_id = "Qwen/Qwen2.5-7B";
  return cell;
}

CellSpec rich_cell() {
  CellSpec cell;
  cell.method = "resident";
  cell.model.model_id = "../models/m";
  cell.model.revision = "v1";
  cell.model.weights = "synthetic";
  cell.precision = "bf16";
  cell.device = "cpu";
  cell.hardware.gpu_name = "NVIDIA B300";
  cell.training.steps = 25;
  cell.training.learning_rate = 2e-3;
  cell.training.packing = true;
  cell.training.dataset.source = "./a.txt";
  cell.training.dataset.format = "text";
  cell.lora.alpha = 16;
  cell.lora.dropout = 0;
  cell.lora.target_modules = {"q_proj", "v_proj"};
  cell.lora.rank_pattern = {{"q_proj", 8}};
  cell.poros.block_size = 1;
  cell.poros.sweep_rows = 8192;
  return cell;
}

TEST(CellKey, Golden) {
  EXPECT_EQ(dump_json(canonical_work(plain_cell("poros"))),
            R"({"method":"poros","model":{"model_id":"Qwen/Qwen2.5-7B"}})");
  EXPECT_EQ(cell_key(plain_cell("poros")),
            "b6e038f823f13e36bde71b7f4417ecf79c501e8b8629b6d587a5b945a8ec611c");
  EXPECT_EQ(group_key(plain_cell("poros")),
            "50d916737e3d4833c631e4c0b54eca63b6e8d14c250e8c2b98150d8c9cc2fc40");
  EXPECT_EQ(cell_key(plain_cell("peft")),
            "d900a4b2bcd678b7fcffd88dcd84c04f83442fe94491f57a251fe7dd7ea4e7e7");
  EXPECT_EQ(
      dump_json(canonical_work(rich_cell())),
      R"({"device":"cpu","hardware":{"gpu_name":"NVIDIA B300"},"lora":{"alpha":16.0,"dropout":0.0,)"
      R"("rank_pattern":{"q_proj":8},"target_modules":["q_proj","v_proj"]},"method":"resident",)"
      R"("model":{"model_id":"../models/m","revision":"v1","weights":"synthetic"},)"
      R"("poros":{"block_size":1,"sweep_rows":8192},"precision":"bf16",)"
      R"("training":{"dataset":{"format":"text","source":"./a.txt"},"learning_rate":0.002,)"
      R"("packing":true,"steps":25}})");
  EXPECT_EQ(cell_key(rich_cell()),
            "923453d13daa817e31c11417374f0074481029df6ceeb36f364cc3ea3a2def94");
}

TEST(CellKey, LabelsPassesAndPathsDoNotCount) {
  CellSpec cell = rich_cell();
  cell.model.display_name = "Another name";
  cell.model.param_count_b = 7.6;
  cell.model.path = "/somewhere/else";
  cell.hardware.vram_gb = 24;
  cell.hardware.pcie_gen = 5;
  cell.training.n_passes = 99;
  cell.training.dataset.path = "/data/a.txt";
  EXPECT_EQ(cell_key(cell), cell_key(rich_cell()));
}

TEST(CellKey, OnlyTheSettingsThatAnArmReadsCount) {
  CellSpec own = plain_cell("poros"), other = plain_cell("peft");
  own.peer.gradient_checkpointing = other.peer.gradient_checkpointing = false;
  EXPECT_EQ(cell_key(own), cell_key(plain_cell("poros")));
  EXPECT_NE(cell_key(other), cell_key(plain_cell("peft")));
  own = plain_cell("resident");
  other = plain_cell("unsloth");
  own.poros.block_size = other.poros.block_size = 1;
  EXPECT_NE(cell_key(own), cell_key(plain_cell("resident")));
  EXPECT_EQ(cell_key(other), cell_key(plain_cell("unsloth")));
  EXPECT_EQ(group_key(own), group_key(other));
}

TEST(CellKey, EveryOtherFieldCounts) {
  const std::string base = cell_key(plain_cell("poros"));
  std::set<std::string> keys = {base};
  int changes = 0;
  const auto expect_new = [&](const CellSpec& cell) {
    ++changes;
    keys.insert(cell_key(cell));
  };
  const auto with = [&](auto change) {
    CellSpec cell = plain_cell("poros");
    change(cell);
    expect_new(cell);
  };
  with([](CellSpec& cell) { cell.model.model_id = "Qwen/Qwen2.5-32B"; });
  with([](CellSpec& cell) { cell.hardware.vram_cap_mb = 24576; });
  with([](CellSpec& cell) { cell.training.seq_len = 256; });
  with([](CellSpec& cell) { cell.training.batch_size = 2; });
  with([](CellSpec& cell) { cell.training.gradient_accumulation_steps = 4; });
  with([](CellSpec& cell) { cell.training.seed = 1; });
  with([](CellSpec& cell) { cell.training.warmup_steps = 2; });
  with([](CellSpec& cell) { cell.training.compute_dtype = "fp32"; });
  with([](CellSpec& cell) { cell.training.lr_scheduler = "linear"; });
  with([](CellSpec& cell) { cell.training.lr_warmup_steps = 3; });
  with([](CellSpec& cell) { cell.training.max_grad_norm = 0.5; });
  with([](CellSpec& cell) { cell.training.weight_decay = 0; });
  with([](CellSpec& cell) { cell.training.dataset.text_field = "body"; });
  with([](CellSpec& cell) { cell.lora.rank = 8; });
  with([](CellSpec& cell) { cell.lora.use_rslora = true; });
  with([](CellSpec& cell) { cell.lora.alpha_pattern = {{"q_proj", 8}}; });
  with([](CellSpec& cell) { cell.poros.enable_prefetch = false; });
  with([](CellSpec& cell) { cell.poros.accumulation = "micro_major"; });
  with([](CellSpec& cell) { cell.poros.layer_inputs = "host"; });
  with([](CellSpec& cell) { cell.poros.vram_budget_mb = 8000; });
  with([](CellSpec& cell) { cell.poros.lean = true; });
  with([](CellSpec& cell) { cell.protocol = "native"; });
  EXPECT_EQ(keys.size(), static_cast<std::size_t>(changes) + 1);
}

TEST(CellSpecJson, RoundTrip) {
  for (const CellSpec& cell : {plain_cell("peft"), rich_cell()}) {
    const Json json = to_json(cell);
    EXPECT_EQ(to_json(cell_spec_from_json(json, "request.json")), json);
    EXPECT_EQ(cell_key(cell_spec_from_json(json, "request.json")), cell_key(cell));
  }
}

TEST(CellSpecJson, RefusesWhatIsWrong) {
  const auto message = [](const Json& json) -> std::string {
    try {
      static_cast<void>(cell_spec_from_json(json, "request.json"));
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::input);
      return error.what();
    }
    return "accepted";
  };
  const Json good = to_json(rich_cell());
  EXPECT_EQ(message(good), "accepted");
  Json json = good;
  json["more"] = 1;
  EXPECT_EQ(message(json), "request.json: unknown key \"more\"");
  json = good;
  json.erase("lora");
  EXPECT_EQ(message(json), "request.json: key \"lora\" is missing");
  json = good;
  json["method"] = "qlora";
  EXPECT_EQ(message(json).substr(0, 52), "request.json: method: \"qlora\" is not a known value; ");
  json = good;
  json["training"]["steps"] = "25";
  EXPECT_EQ(
      message(json),
      "request.json: training.steps: a JSON string has the wrong type; expected an integer from "
      "1 to 100000000");
  json = good;
  json["training"]["dataset"]["soruce"] = "x";
  EXPECT_EQ(message(json), "request.json: unknown key \"training.dataset.soruce\"");
  EXPECT_EQ(message(Json::array()), "request.json: the cell is not an object");
}

TEST(Expansion, KeepsTheOrderOfTheSpecWithGroupsTogether) {
  const BenchmarkSpec spec = parse_spec(
      "spec_id: order\n"
      "models: [{model_id: a/one}, {model_id: a/two}]\n"
      "methods: [peft, poros]\n"
      "precisions: [nf4, bf16]\n"
      "peers: {peft: {gradient_checkpointing: false}}\n",
      "spec.yaml", "/specs");
  const std::vector<CellSpec> cells = expand(spec);
  std::vector<std::string> found;
  for (const CellSpec& cell : cells) {
    found.push_back(cell.model.model_id + " " + cell.precision + " " + cell.method);
  }
  EXPECT_EQ(found,
            (std::vector<std::string>{"a/one nf4 peft", "a/one nf4 poros", "a/one bf16 peft",
                                      "a/one bf16 poros", "a/two nf4 peft", "a/two nf4 poros",
                                      "a/two bf16 peft", "a/two bf16 poros"}));
  EXPECT_FALSE(cells[0].peer.gradient_checkpointing);
  EXPECT_EQ(group_key(cells[0]), group_key(cells[1]));
  EXPECT_NE(group_key(cells[1]), group_key(cells[2]));
  EXPECT_EQ(artifact_names(cells)[0], "peft_one_nf4.json");
}

TEST(Expansion, NamesThatWouldBeSharedGetTheKey) {
  const BenchmarkSpec spec = parse_spec(
      "spec_id: same\n"
      "models: [{model_id: a/model}, {model_id: b/Model}, {model_id: c/other}]\n"
      "methods: [poros]\n",
      "spec.yaml", "/specs");
  const std::vector<CellSpec> cells = expand(spec);
  const std::vector<std::string> names = artifact_names(cells);
  EXPECT_EQ(names[0], "poros_model_nf4_" + cell_key(cells[0]).substr(0, 8) + ".json");
  EXPECT_EQ(names[1], "poros_model_nf4_" + cell_key(cells[1]).substr(0, 8) + ".json");
  EXPECT_EQ(names[2], "poros_other_nf4.json");
}

TEST(Slug, IsAPlainFileNamePart) {
  const auto slug = [](const std::string& id, const std::string& name = "") {
    ModelSpec model;
    model.model_id = id;
    model.display_name = name;
    return model_slug(model);
  };
  EXPECT_EQ(slug("Qwen/Qwen2.5-7B"), "qwen2.5-7b");
  EXPECT_EQ(slug("../models/kjv-qwen2/"), "kjv-qwen2");
  EXPECT_EQ(slug("/data/My Model (v2)"), "my-model--v2");
  EXPECT_EQ(slug("/data/..", "Fallback Name"), "fallback-name");
  EXPECT_EQ(slug("/", ""), "model");
  EXPECT_EQ(slug("./a/" + std::string(100, 'x')).size(), 64U);
}

}  // namespace
}  // namespace poros
