// SPDX-License-Identifier: Apache-2.0
// `poros-cell generate`: lets a model go on from a prompt, to look at what was trained. Each token
// is computed from all before it, without a cache of keys and values: as in training, and slow.
#pragma once

#include <cstdint>
#include <filesystem>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace poros {

struct GenerateOptions {
  std::filesystem::path model_dir;
  std::filesystem::path adapter_dir;  // empty: the base alone
  std::filesystem::path cache_dir;    // empty: the user's cache
  std::string precision = "nf4";      // nf4 | bf16 | fp16 | fp32
  std::string device = "cpu";         // cpu | cuda
  std::int64_t threads = 0;           // 0: as many as the machine has
  std::int64_t max_new_tokens = 128;
  double temperature = 0;  // 0: the likeliest token each time
  double top_p = 1;        // draw among the likeliest tokens that have this share together
  std::uint64_t seed = 0;
  std::vector<std::uint32_t> prompt, stop_ids;
};

struct Generation {
  std::vector<std::uint32_t> ids;  // without the prompt; ends with the stop id, if there was one
  std::string finish;              // "stop", "length" (max_new_tokens) or "context" (positions end)
};

/// The next token: the first of the largest logits at temperature 0, else drawn from
/// softmax(logits / temperature) among the fewest likeliest tokens whose probabilities reach top_p.
/// The same logits and generator state give the same token on every machine.
[[nodiscard]] std::uint32_t choose_token(std::span<const float> logits, double temperature,
                                         double top_p, std::mt19937_64& random);

/// @throws Error(Fault::input) for ids outside the vocabulary, an empty prompt or one that fills
/// the model's positions, settings out of range
[[nodiscard]] Generation generate(const GenerateOptions& options);

/// Reads {"prompt": [...], "stop_ids": [...]} and writes {"ids": [...], "finish": "..."}.
/// @returns exit code
int generate_files(GenerateOptions options, const std::filesystem::path& prompt,
                   const std::filesystem::path& answer);

}  // namespace poros
