// SPDX-License-Identifier: Apache-2.0
#include "spec/train_config.hpp"

#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace poros {
namespace {

TrainConfig parse(const std::string& text) {
  return parse_train_config(text, "c.yaml", "/configs");
}

std::string fault_of(const std::string& text) {
  try {
    static_cast<void>(parse(text));
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::input) << text;
    return error.what();
  }
  return "accepted";
}

TEST(TrainConfig, AModelAloneIsEnough) {
  const TrainConfig config = parse("model: org/name\n");
  EXPECT_EQ(config.model.model_id, "org/name");
  EXPECT_EQ(config.model.path, "");
  EXPECT_EQ(config.device, "auto");
  EXPECT_EQ(config.residency, "auto");
  EXPECT_EQ(config.save_every, 500);
  EXPECT_EQ(config.keep_checkpoints, 3);
  EXPECT_FALSE(config.epochs.has_value());
  EXPECT_EQ(config.training.dataset.source, "synthetic");
  EXPECT_EQ(config.training.warmup_steps, 0);
}

TEST(TrainConfig, EveryKeyOfTheTopIsRead) {
  const TrainConfig config = parse(R"(
model: {model_id: ../m/tiny, weights: synthetic}
device: cpu
precision: bf16
residency: poros
epochs: 1.5
eval_every: 7
eval_rows: 9
save_every: 0
keep_checkpoints: 2
output_dir: out
tensorboard: true
threads: 3
training: {seq_len: 64, dataset: {path: a.jsonl, validation_fraction: 0.25}}
lora: {rank: 4}
poros: {vram_budget_mb: 100}
)");
  EXPECT_EQ(config.model.path, "/m/tiny");
  EXPECT_EQ(config.model.weights, "synthetic");
  EXPECT_EQ(config.device, "cpu");
  EXPECT_EQ(config.precision, "bf16");
  EXPECT_EQ(config.residency, "poros");
  EXPECT_EQ(config.epochs, 1.5);
  EXPECT_EQ(config.eval_every, 7);
  EXPECT_EQ(config.eval_rows, 9);
  EXPECT_EQ(config.save_every, 0);
  EXPECT_EQ(config.keep_checkpoints, 2);
  EXPECT_EQ(config.output_dir, "out");
  EXPECT_TRUE(config.tensorboard);
  EXPECT_EQ(config.threads, 3);
  EXPECT_EQ(config.training.dataset.path, "/configs/a.jsonl");
  EXPECT_EQ(config.training.dataset.validation_fraction, 0.25);
  EXPECT_EQ(config.lora.rank, 4);
  EXPECT_EQ(config.poros.vram_budget_mb, 100);
  const Json json = to_json(config);
  EXPECT_EQ(to_json(train_config_from_json(json, "json")), json);
}

TEST(TrainConfig, FaultsAreShownWithTheirPlace) {
  struct Attack {
    std::string text, wanted;
  };
  const std::vector<Attack> attacks = {
      {"device: cpu\n", "c.yaml:1:1: key \"model\" is missing"},
      {"model: org/name\nlearning_rate: 1e-3\n", "c.yaml:2:1: unknown key \"learning_rate\""},
      {"model: org/name\nlearning_rate: 1e-3\n", "did you mean \"training.learning_rate\"?"},
      {"model: org/name\nepoch: 3\n", "did you mean \"epochs\"?"},
      {"model: org/name\nepochs: 0\n", "c.yaml:2:9: epochs: 0 is out of range"},
      {"model: org/name\nepochs: -1\n", "epochs: -1 is out of range"},
      {"model: org/name\nepochs: .nan\n", "c.yaml:2:9: epochs:"},
      {"model: org/name\nepochs: 1\n", "synthetic data have no end"},
      {"model: org/name\nepochs: 1\ntraining: {steps: 5, dataset: ./a.txt}\n",
       "c.yaml:3:19: training.steps and epochs are both given"},
      {"model: org/name\ntraining: {warmup_steps: 5}\n",
       "c.yaml:2:12: key \"training.warmup_steps\" belongs to a benchmark"},
      {"model: org/name\ntraining: {n_passes: 5}\n", "belongs to a benchmark"},
      {"model: org/name\nkeep_checkpoints: 0\n", "keep_checkpoints: 0 is out of range"},
      {"model: org/name\nsave_every: -1\n", "save_every: -1 is out of range"},
      {"model: org/name\nresidency: streamed\n", "expected one of: auto, poros, resident"},
      {"model: org/name\ndevice: gpu\n", "expected one of: auto, cuda, cpu"},
      {"model: org/name\nprecision: int8\n", "precision: \"int8\" is not a known value"},
      {"model: org/name\nmethods: [poros]\n", "unknown key \"methods\""},
      {"model: org/name\nmodel: org/other\n", "c.yaml:2:1:"},
      {"model: [a]\n", "c.yaml:1:8: model:"},
      {"model:\n", "model:"},
      {"model: {weights: synthetic}\n", "model_id"},
      {"model: models/tiny/deep\n", "model:"},
      {"model: org/name\nlora: {rank: 0}\n", "lora.rank: 0 is out of range"},
      {"model: org/name\nlora: {dropout: 1.5}\n", "lora.dropout"},
      {"model: org/name\ntraining: {seq_len: 64, lr_warmup_steps: 9, steps: 8}\n",
       "lr_warmup_steps: 9 is more than steps (8)"},
      {"model: org/name\nresidency: resident\nporos: {vram_budget_mb: 5}\n",
       "means nothing where residency is resident"},
      {"model: org/name\ntensorboard: yes\n", "tensorboard"},
      {"- a\n", "c.yaml:1:1"},
      {"", "c.yaml"},
      {"a: &x 1\nmodel: *x\n", "c.yaml:1"},
  };
  for (const Attack& attack : attacks) {
    const std::string fault = fault_of(attack.text);
    EXPECT_NE(fault.find(attack.wanted), std::string::npos) << attack.text << "\n" << fault;
  }
}

TEST(TrainConfig, OutputAndLengthAreNotTheWork) {
  const std::string base = "model: org/name\ntraining: {steps: 8}\n";
  const Json work = training_work(parse(base));
  for (const char* same : {"save_every: 7\n", "eval_every: 7\n", "keep_checkpoints: 1\n",
                           "output_dir: o\n", "tensorboard: true\n", "residency: poros\n",
                           "poros: {block_size: 2, vram_budget_mb: 9}\n"}) {
    EXPECT_EQ(training_work(parse(base + same)), work) << same;
  }
  EXPECT_EQ(training_work(parse("model: org/name\ntraining: {steps: 9}\n")), work);
  const auto differ = [&](const std::string& text) {
    return work_differences(work, training_work(parse(text)));
  };
  EXPECT_EQ(differ("model: org/name\ntraining: {steps: 8, learning_rate: 0.5}\n"),
            std::vector<std::string>{"training.learning_rate: 2e-05 -> 0.5"});
  EXPECT_EQ(differ(base + "lora: {rank: 8}\nprecision: bf16\n"),
            (std::vector<std::string>{"lora.rank: 16 -> 8", "precision: \"nf4\" -> \"bf16\""}));
}

TEST(TrainConfig, TheShippedConfigIsRead) {
  const TrainConfig config =
      read_train_config(std::string(POROS_SOURCE_DIR) + "/configs/train/alice.yaml");
  EXPECT_EQ(config.epochs, 2);
  EXPECT_EQ(config.device, "cpu");
}

TEST(TrainConfig, TheSchemaHasEveryKey) {
  const std::string text = train_schema_markdown();
  const Json schema = train_schema_json();
  const Json keys = to_json(TrainConfig());
  for (const auto& [name, value] : keys.items()) {
    EXPECT_NE(text.find(name), std::string::npos) << name;
    EXPECT_TRUE(schema["properties"].contains(name)) << name;
  }
  EXPECT_FALSE(schema["properties"]["training"]["properties"].contains("n_passes"));
  EXPECT_TRUE(schema["properties"]["training"]["properties"].contains("dataset"));
}

}  // namespace
}  // namespace poros
