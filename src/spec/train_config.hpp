// SPDX-License-Identifier: Apache-2.0
// What a person writes for `poros train`. The sections model, training (with its dataset), lora and
// poros are those of a benchmark's spec: one schema for both.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.hpp"
#include "spec/spec.hpp"

namespace poros {

struct TrainConfig {
  std::string file;                // set by the reader: the file as it was named
  std::string device = "auto";     // auto | cuda | cpu
  std::string precision = "nf4";   // storage of the frozen base
  std::string residency = "auto";  // auto (by the memory that is free) | poros | resident
  std::optional<double> epochs;    // instead of training.steps
  std::int64_t eval_every = 0;     // [optimizer steps]; 0: before the first and after the last
  std::int64_t eval_rows = 0;      // of the validation rows; 0: all
  std::int64_t save_every = 500;   // [optimizer steps]; 0: at the end or a stop alone
  std::int64_t keep_checkpoints = 3;
  std::string output_dir = "./poros_output";
  bool tensorboard = false;
  std::optional<std::int64_t> threads;  // of the CPU; not set: all
  ModelSpec model;
  TrainingSpec training;  // warmup_steps and n_passes mean nothing here
  LoraSpec lora;
  PorosSpec poros;
};

/// Reads and checks a config. Relative paths of model and data are taken from the file's folder,
/// output_dir from the current one.
/// @throws Error(Fault::input) with all faults: file:line:column: what; expected; did you mean
[[nodiscard]] TrainConfig read_train_config(const std::filesystem::path& file);
[[nodiscard]] TrainConfig parse_train_config(std::string_view text, const std::string& origin,
                                             const std::filesystem::path& folder);

/// All keys, defaults included, and the inverse. @throws Error(Fault::input)
[[nodiscard]] Json to_json(const TrainConfig& config);
[[nodiscard]] TrainConfig train_config_from_json(const Json& json, const std::string& origin);

/// The keys that decide what is computed, as they must be for a run to go on: not those of output,
/// residency, length (steps, epochs) and labels.
[[nodiscard]] Json training_work(const TrainConfig& config);

/// Paths of the keys in which two training_work values differ: "training.learning_rate: 1e-4 ->
/// 2e-4".
[[nodiscard]] std::vector<std::string> work_differences(const Json& before, const Json& after);

/// `poros schema train`: for people and as a JSON Schema.
[[nodiscard]] std::string train_schema_markdown();
[[nodiscard]] Json train_schema_json();

}  // namespace poros
