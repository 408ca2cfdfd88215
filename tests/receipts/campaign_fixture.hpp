// SPDX-License-Identifier: Apache-2.0
// Synthetic campaigns in the real formats, written with the product's own writers: for tests of the
// store and of the reports. The numbers are made up (and the spec's name says so), the same for the
// same options.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace poros::testing {

struct FixtureOptions {
  std::string spec_id = "synthetic-launch";
  std::vector<std::string> models = {"Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-32B"};
  std::vector<std::string> hardware = {"NVIDIA GeForce RTX 3090", "NVIDIA A100-SXM4-80GB"};
  std::vector<std::string> methods = {"poros", "resident", "unsloth", "peft", "accelerate_offload"};
  std::string device = "cuda";  // cpu: memory is host memory, no GPU fields
  int passes = 3;
  int steps = 25;
  bool parity = true;
  bool incidents = true;  // an oom, an error, a skip, a suspect arm, a cell not run
  std::string attack;     // put into every text field that a record has
};

/// Writes spec.json, results.jsonl (closed) and all artifacts into an existing, empty folder.
void write_campaign(const std::filesystem::path& dir, const FixtureOptions& options);

}  // namespace poros::testing
