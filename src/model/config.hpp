// SPDX-License-Identifier: Apache-2.0
// config.json as Hugging Face writes it, read in both dialects (transformers 4: rope_theta,
// rope_scaling, torch_dtype; transformers 5: rope_parameters, dtype).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "model/architecture.hpp"

namespace poros {

/// Typed, range-checked access. Every error names the file and the key.
class ModelConfig {
 public:
  ModelConfig(Json json, std::string origin);

  [[nodiscard]] const Json& json() const { return json_; }
  [[nodiscard]] const std::string& origin() const { return origin_; }
  [[nodiscard]] std::string model_type() const;

  /// An integer in [1, limit]; null counts as absent. Without `otherwise` the key is needed.
  [[nodiscard]] std::int64_t size(const char* key, std::int64_t limit,
                                  std::optional<std::int64_t> otherwise = {}) const;
  [[nodiscard]] std::optional<std::int64_t> find_size(const char* key, std::int64_t limit) const;
  [[nodiscard]] double number(const char* key, std::optional<double> otherwise = {}) const;
  [[nodiscard]] std::optional<double> find_number(const char* key) const;
  [[nodiscard]] bool flag(const char* key, bool otherwise) const;
  [[nodiscard]] std::string text(const char* key, const std::string& otherwise) const;

  /// For each layer: is it of type "sliding_attention" in layer_types? Empty when there is no such
  /// list. @throws when the list's length or an entry is wrong.
  [[nodiscard]] std::vector<bool> sliding_layers(std::int64_t layers) const;

  /// The parameters of one rotary table as one object, whatever the dialect: rope_type, rope_theta,
  /// factors. `part` is "" or, where tables differ by layer type, "full_attention" or so.
  [[nodiscard]] Json rope(const std::string& part, double default_theta) const;

  /// A config nested in this one (text_config), or nothing.
  [[nodiscard]] std::optional<ModelConfig> nested(const char* key) const;

 private:
  Json json_;
  std::string origin_;
};

/// Reads folder/config.json, or the file itself where `path` is one (at most 4 MiB).
[[nodiscard]] ModelConfig read_model_config(const std::filesystem::path& path);

/// Inverse frequencies of a rotary table. `rotary_dim` is even. Kinds: default, linear, llama3,
/// longrope (formulas: transformers' modeling_rope_utils, computed in its order of fp32 roundings).
/// @throws Error(Fault::input) for another kind (yarn, dynamic), naming those that are known.
[[nodiscard]] RopeTable rope_table(const ModelConfig& config, const Json& parameters,
                                   std::int64_t rotary_dim, std::int64_t max_positions);

}  // namespace poros
