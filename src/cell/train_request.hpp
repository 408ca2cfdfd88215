// SPDX-License-Identifier: Apache-2.0
// What `poros train` asks of its trainer: `poros-cell train REQUEST.json`. The answer is
// {output_dir}/events.jsonl, whose last line is this run's teardown, and the exit code: 0 done, 1
// failed, 2 wrong input, 75 stopped on request.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/json.hpp"
#include "spec/train_config.hpp"

namespace poros {

struct TrainRequest {
  TrainConfig config;  // device is cuda or cpu; training.steps holds the steps of the epochs too
  std::string run_id;
  std::filesystem::path model_dir, tokens_path, adapter_dir, cache_dir, output_dir;
  std::filesystem::path validation_path;  // empty: nothing to evaluate on
  std::string resume = "auto";            // auto | none | path of a checkpoint
  std::int64_t threads = 1;
};

[[nodiscard]] Json to_json(const TrainRequest& request);
/// Reads a request file. @throws Error(Fault::input) naming file and key
[[nodiscard]] TrainRequest read_train_request(const std::filesystem::path& path);

}  // namespace poros
