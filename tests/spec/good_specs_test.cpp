// SPDX-License-Identifier: Apache-2.0
// What a good spec means: defaults, every key, paths, and its JSON.
#include <filesystem>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "spec/expand.hpp"
#include "spec/schema.hpp"
#include "spec/spec_json.hpp"
#include "spec/spec_reader.hpp"

namespace poros {
namespace {

BenchmarkSpec parse(const std::string& text) {
  return parse_spec(text, "spec.yaml", "/specs/bench");
}

const std::string kSmallest =
    "spec_id: smallest\n"
    "models:\n"
    "  - model_id: Qwen/Qwen2.5-7B\n";

const std::string kEverything = R"(spec_id: everything-1.0_x
protocol: native
parity: off
device: cpu
hardware: {gpu_name: NVIDIA GeForce RTX 3090, vram_gb: 24, pcie_gen: 4, vram_cap_mb: 24576}
models:
  - model_id: Qwen/Qwen2.5-0.5B
    display_name: "7B"
    param_count_b: 7.6
    revision: refs/pr/3
    weights: synthetic
  - {model_id: ./local/model/}
methods: [resident, poros]
precisions: [nf4, bf16, fp16]
training:
  steps: 50
  seq_len: 128
  batch_size: 2
  gradient_accumulation_steps: 4
  dataset: {source: org/texts, format: jsonl, text_field: content, rows: messages, loss_on: last,
            too_long: drop, shuffle: false, split: part, chat_template: chat/own.jinja,
            validation_fraction: 0.25, validation: ../held_out.jsonl}
  seed: 4294967295
  warmup_steps: 0
  n_passes: 1
  compute_dtype: fp32
  packing: true
  learning_rate: 1e-4
  lr_scheduler: linear
  lr_warmup_steps: 10
  max_grad_norm: 0
  weight_decay: 0
lora:
  rank: 8
  alpha: 12.5
  dropout: 0
  target_modules: [q_proj, o_proj]
  use_rslora: true
  rank_pattern: {"layers.0.*q_proj": 4}
  alpha_pattern: {v_proj: 0.5}
poros:
  block_size: 2
  enable_prefetch: false
  accumulation: micro_major
  sweep_rows: 256
  layer_inputs: device
  vram_budget_mb: 8000
peers:
  peft: {gradient_checkpointing: false, attn_implementation: sdpa, best_shape: true, offload_fraction: 0.25}
timeouts: {load: 1.5h, step: 90, cell: "45m"}
reporting: {output_dir: out, html: false, markdown: false, emit_json: false}
)";

TEST(GoodSpecs, DefaultsAreThoseOfTheOriginal) {
  const BenchmarkSpec spec = parse(kSmallest);
  EXPECT_EQ(spec.methods, (std::vector<std::string>{"poros", "resident", "unsloth", "peft",
                                                    "accelerate_offload"}));
  EXPECT_EQ(spec.precisions, std::vector<std::string>{"nf4"});
  EXPECT_EQ(spec.hardware.gpu_name, "unknown");
  EXPECT_EQ(spec.training.steps, 200);
  EXPECT_EQ(spec.training.seq_len, 512);
  EXPECT_EQ(spec.training.batch_size, 1);
  EXPECT_EQ(spec.training.gradient_accumulation_steps, 8);
  EXPECT_EQ(spec.training.dataset.source, "synthetic");
  EXPECT_EQ(spec.training.seed, 42);
  EXPECT_EQ(spec.training.warmup_steps, 5);
  EXPECT_EQ(spec.training.n_passes, 3);
  EXPECT_EQ(spec.training.learning_rate, 2e-5);
  EXPECT_EQ(spec.training.weight_decay, 0.01);
  EXPECT_EQ(spec.training.max_grad_norm, 1.0);
  EXPECT_EQ(spec.training.lr_scheduler, "cosine");
  EXPECT_EQ(spec.lora.rank, 16);
  EXPECT_EQ(spec.lora.alpha, 32);
  EXPECT_EQ(spec.lora.dropout, 0.05);
  EXPECT_TRUE(spec.lora.target_modules.empty());
  EXPECT_EQ(spec.poros.block_size, 4);
  EXPECT_TRUE(spec.poros.enable_prefetch);
  EXPECT_EQ(spec.reporting.output_dir, "./bench_output");
  EXPECT_TRUE(spec.reporting.html && spec.reporting.markdown && spec.reporting.emit_json);
  EXPECT_EQ(spec.peers.size(), 3U);
  EXPECT_EQ(spec.models[0].display_name, "Qwen2.5-7B");
  EXPECT_EQ(spec.models[0].path, "");
  EXPECT_EQ(spec.file, "spec.yaml");
}

TEST(GoodSpecs, EveryKeyIsRead) {
  const BenchmarkSpec spec = parse(kEverything);
  EXPECT_EQ(spec.spec_id, "everything-1.0_x");
  EXPECT_EQ(spec.parity, "off");
  EXPECT_EQ(spec.device, "cpu");
  EXPECT_EQ(spec.hardware.vram_gb, 24);
  EXPECT_EQ(spec.hardware.pcie_gen, 4);
  EXPECT_EQ(spec.hardware.vram_cap_mb, 24576);
  EXPECT_EQ(spec.models[0].display_name, "7B");
  EXPECT_EQ(spec.models[0].param_count_b, 7.6);
  EXPECT_EQ(spec.models[0].revision, "refs/pr/3");
  EXPECT_EQ(spec.models[0].weights, "synthetic");
  EXPECT_EQ(spec.models[1].display_name, "model");
  EXPECT_EQ(spec.models[1].path, "/specs/bench/local/model");
  EXPECT_EQ(spec.training.dataset.source, "org/texts");
  EXPECT_EQ(spec.training.dataset.format, "jsonl");
  EXPECT_EQ(spec.training.dataset.text_field, "content");
  EXPECT_EQ(spec.training.dataset.path, "");
  EXPECT_EQ(spec.training.dataset.chat_template_path, "/specs/bench/chat/own.jinja");
  EXPECT_EQ(spec.training.dataset.validation_path, "/specs/held_out.jsonl");
  EXPECT_EQ(spec.training.seed, 4294967295);
  EXPECT_EQ(spec.training.learning_rate, 1e-4);
  EXPECT_EQ(spec.training.max_grad_norm, 0);
  EXPECT_TRUE(spec.training.packing);
  EXPECT_EQ(spec.lora.alpha, 12.5);
  EXPECT_EQ(spec.lora.rank_pattern.at("layers.0.*q_proj"), 4);
  EXPECT_EQ(spec.lora.alpha_pattern.at("v_proj"), 0.5);
  EXPECT_EQ(spec.poros.sweep_rows, 256);
  EXPECT_EQ(spec.poros.vram_budget_mb, 8000);
  EXPECT_EQ(spec.peers.at("peft").attn_implementation, "sdpa");
  EXPECT_FALSE(spec.peers.at("peft").gradient_checkpointing);
  EXPECT_TRUE(spec.peers.at("peft").best_shape);
  EXPECT_EQ(spec.peers.at("peft").offload_fraction, 0.25);
  EXPECT_TRUE(spec.peers.at("unsloth").gradient_checkpointing);
  EXPECT_EQ(spec.timeouts.load_s, 5400);
  EXPECT_EQ(spec.timeouts.step_s, 90);
  EXPECT_EQ(spec.timeouts.cell_s, 2700);
  EXPECT_FALSE(spec.reporting.emit_json);
}

TEST(GoodSpecs, EveryKeyOfTheTableIsTriedAbove) {
  // A key that is added to the table and not to kEverything would not be tested.
  const Json read = spec_to_json(parse(kEverything));
  const Json defaults = spec_to_json(parse(kSmallest));
  const auto check = [](const std::string& section, const Json& got, const Json& untouched) {
    for (const SchemaKey& key : schema_section(section).keys) {
      if (key.rule.later) continue;
      EXPECT_NE(got[key.name], untouched[key.name]) << key.path();
    }
  };
  check("", read, defaults);
  for (const char* name : {"hardware", "training", "lora", "poros", "timeouts", "reporting"}) {
    check(name, read[name], defaults[name]);
  }
  check("models[]", read["models"][0], defaults["models"][0]);
  check("training.dataset", read["training"]["dataset"], defaults["training"]["dataset"]);
  check("peers.<method>", read["peers"]["peft"], defaults["peers"]["peft"]);
}

TEST(GoodSpecs, JsonHoldsEverythingAndReadsBack) {
  const Json json = spec_to_json(parse(kEverything));
  EXPECT_EQ(spec_to_json(spec_from_json(json, "spec.json")), json);
  EXPECT_EQ(spec_to_json(spec_from_json(parse_json(dump_json(json), "text"), "spec.json")), json);
  Json unknown = json;
  unknown["training"]["stesp"] = 5;
  EXPECT_THROW(static_cast<void>(spec_from_json(unknown, "spec.json")), Error);
  Json out_of_range = json;
  out_of_range["lora"]["rank"] = 0;
  EXPECT_THROW(static_cast<void>(spec_from_json(out_of_range, "spec.json")), Error);
}

TEST(GoodSpecs, PathsAreSeenFromTheSpecsFolder) {
  const auto dataset_path = [](const std::string& dataset) {
    return parse(kSmallest + "training: {dataset: " + dataset + "}\n").training.dataset;
  };
  EXPECT_EQ(dataset_path("../data/a.txt").path, "/specs/data/a.txt");
  EXPECT_EQ(dataset_path("../data/a.txt").source, "../data/a.txt");
  EXPECT_EQ(dataset_path("/abs/a.txt").path, "/abs/a.txt");
  EXPECT_EQ(dataset_path("{path: texts/a.txt}").path, "/specs/bench/texts/a.txt");
  EXPECT_EQ(dataset_path("{path: texts/a.txt}").source, "./texts/a.txt");
  EXPECT_EQ(dataset_path("{source: texts/a.txt}").path, "");  // a hub id
  EXPECT_EQ(dataset_path("synthetic").path, "");
  const std::string file = POROS_SOURCE_DIR "/configs/bench/demo_cpu.yaml";
  const BenchmarkSpec demo = read_spec(file);
  EXPECT_EQ(demo.file, file);
  EXPECT_EQ(demo.models[0].path, POROS_SOURCE_DIR "/configs/models/kjv-qwen2");
  EXPECT_TRUE(std::filesystem::exists(demo.training.dataset.path));
}

TEST(GoodSpecs, FormsOfAllLinear) {
  for (const char* value : {"all-linear", "null", "~", ""}) {
    const auto spec = parse(kSmallest + "lora:\n  target_modules: " + value + "\n");
    EXPECT_TRUE(spec.lora.target_modules.empty()) << value;
  }
}

TEST(GoodSpecs, NullOfAnOptionalKeyMeansNotSet) {
  const auto spec = parse(kSmallest + "poros: {sweep_rows: null, vram_budget_mb: ~}\n");
  EXPECT_FALSE(spec.poros.sweep_rows);
  EXPECT_FALSE(spec.poros.vram_budget_mb);
}

TEST(GoodSpecs, YamlThatIsOnlyAnotherSpellingGivesTheSameSpec) {
  const Json json = spec_to_json(parse(kSmallest));
  for (const std::string& text :
       {"---\n" + kSmallest, kSmallest + "...\n", "\xef\xbb\xbf" + kSmallest,
        std::string("{spec_id: smallest, models: [{model_id: Qwen/Qwen2.5-7B}]}"),
        std::string(R"({"spec_id": "smallest", "models": [{"model_id": "Qwen/Qwen2.5-7B"}]})"),
        std::string(
            "# comment\r\nspec_id: smallest # too\r\nmodels:\r\n- model_id: Qwen/Qwen2.5-7B")}) {
    EXPECT_EQ(spec_to_json(parse(text)), json) << text;
  }
}

TEST(SpecHash, LeavesOutWhatDoesNotCount) {
  const Json base = spec_to_json(parse(kSmallest));
  const auto changed = [&](const std::string& more) {
    return spec_to_json(parse(kSmallest + more));
  };
  for (const char* more :
       {"reporting: {output_dir: elsewhere, html: false}\n", "timeouts: {cell: 10h}\n",
        "training: {n_passes: 9}\n", "parity: off\n", "hardware: {vram_gb: 24, pcie_gen: 5}\n"}) {
    EXPECT_EQ(spec_sha256(changed(more)), spec_sha256(base)) << more;
    EXPECT_TRUE(spec_differences(base, changed(more)).empty()) << more;
  }
  const Json labelled = spec_to_json(
      parse("spec_id: smallest\nmodels:\n  - {model_id: Qwen/Qwen2.5-7B, display_name: "
            "Seven, param_count_b: 7}\n"));
  EXPECT_EQ(spec_sha256(labelled), spec_sha256(base));
}

TEST(SpecHash, DifferencesNameTheKeysThatChanged) {
  const Json before = spec_to_json(parse(kSmallest));
  const Json after =
      spec_to_json(parse("spec_id: smallest\n"
                         "methods: [poros]\n"
                         "models:\n"
                         "  - model_id: Qwen/Qwen2.5-7B\n"
                         "    revision: v2\n"
                         "  - model_id: Qwen/Qwen2.5-32B\n"
                         "training: {steps: 100}\n"
                         "poros: {sweep_rows: 8192}\n"));
  EXPECT_NE(spec_sha256(before), spec_sha256(after));
  std::vector<std::string> found;
  for (const SpecDifference& difference : spec_differences(before, after)) {
    found.push_back(difference.path + " " + difference.before + " " + difference.after);
  }
  EXPECT_EQ(
      found,
      (std::vector<std::string>{
          R"(methods ["poros","resident","unsloth","peft","accelerate_offload"] ["poros"])",
          R"(models[0].revision "main" "v2")",
          R"(models[1] -- {"model_id":"Qwen/Qwen2.5-32B","revision":"main","weights":"pretrained"})",
          "poros.sweep_rows null 8192", "training.steps 200 100"}));
}

TEST(GoodSpecs, BestShapeAddsACellToTheSameGroup) {
  const std::string text = std::string(kSmallest) +
                           "methods: [resident, peft]\npeers:\n  peft: {best_shape: true}\n"
                           "training: {gradient_accumulation_steps: 8}\n";
  const std::vector<CellSpec> cells = expand(parse(text));
  ASSERT_EQ(cells.size(), 3U);
  EXPECT_FALSE(cells[1].peer.best_shape);
  EXPECT_TRUE(cells[2].peer.best_shape);
  EXPECT_EQ(group_key(cells[2]), group_key(cells[0]));
  EXPECT_NE(cell_key(cells[2]), cell_key(cells[1]));
  // Without accumulation there is nothing to regroup.
  const std::string one = text.substr(0, text.rfind('8')) + "1}\n";
  EXPECT_EQ(expand(parse(one)).size(), 2U);
}

}  // namespace
}  // namespace poros
