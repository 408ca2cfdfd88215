// SPDX-License-Identifier: Apache-2.0
// What `poros check MODEL` says about a model, from its config.json alone.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "model/architecture.hpp"
#include "spec/spec.hpp"

namespace poros {

/// One part of a model: embedding, attention, mlp, experts, router, norms, head.
struct ModelPart {
  std::string name;
  std::int64_t parameters = 0;
  std::uint64_t bytes_16bit = 0;
  std::uint64_t bytes_nf4 = 0;  // linears with double quantisation, the rest in 16 bit
};

struct CheckReport {
  std::string model;  // as it was asked for
  std::string path;   // where its config.json was found
  std::string model_type;
  bool supported = false;
  std::string status;      // "supported", or why not
  std::string checkpoint;  // "complete", "quantised (bitsandbytes NF4)", "none", or its fault
  std::int64_t layers = 0, hidden = 0, vocab = 0, heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t experts = 0, experts_per_token = 0;
  bool tied_embeddings = false;
  std::vector<ModelPart> parts;
  std::int64_t parameters = 0;         // of the checkpoint: a tied head counts once
  std::int64_t active_parameters = 0;  // that one token uses (experts: the top k alone)
  std::int64_t linear_parameters = 0;  // that are quantised
  std::int64_t lora_parameters = 0, lora_rank = 0;
  std::vector<std::string> lora_targets;  // last parts of the adapted linears' names
  std::int64_t max_positions = 0, window = 0, window_layers = 0;
  std::uint64_t bytes_16bit = 0, bytes_nf4 = 0;

  /// 0: can be trained; 1: read, but can't (architecture or checkpoint); nothing found is an Error.
  [[nodiscard]] int exit_code() const;
};

/// @param model a folder, a config.json, or a hub id in the local cache
/// @throws Error(Fault::input) when there is no config.json or it can't be read.
[[nodiscard]] CheckReport check_model(const std::string& model,
                                      const std::string& revision = "main",
                                      const LoraSpec& lora = {});

/// The parts of an architecture in the order of a forward pass.
[[nodiscard]] std::vector<ModelPart> model_parts(const Architecture& architecture);

[[nodiscard]] Json to_json(const CheckReport& report);
/// The same as a table for people; bytes in GB (10^9) and GiB, small ones in MB and MiB.
[[nodiscard]] std::string to_text(const CheckReport& report);

}  // namespace poros
