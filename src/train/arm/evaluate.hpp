// SPDX-License-Identifier: Apache-2.0
// `poros-cell eval`: the loss of a model over given tokens, without training.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "model/token_file.hpp"

namespace poros {

struct EvaluateOptions {
  std::filesystem::path model_dir, tokens_path;
  std::filesystem::path adapter_dir;  // empty: the base alone
  std::filesystem::path cache_dir;    // empty: the user's cache
  std::string precision = "nf4";      // nf4 | bf16 | fp16 | fp32
  std::string device = "cpu";         // cpu | cuda
  std::int64_t threads = 0;           // 0: as many as the machine has
};

/// Rows of tokens of any length as a token file: each row is one document, its first token is not
/// predicted, shorter rows are padded to the longest.
/// @param json   {"input_ids": [[...], ...]}
/// @param origin begins each error message
/// @throws Error(Fault::input) for rows of fewer than 2 tokens and ids outside [0, vocab)
[[nodiscard]] TokenFile tokens_from_json(const Json& json, std::int64_t vocab,
                                         const std::string& origin);

struct Evaluation {
  double loss = 0;                            // mean over all predicted positions [nat]
  std::int64_t tokens = 0;                    // predicted positions
  std::vector<std::optional<double>> losses;  // mean of each row; nullopt where none is predicted
};

/// @throws Error(Fault::input) when nothing is predicted, or a file is wrong
[[nodiscard]] Evaluation evaluate(const EvaluateOptions& options);

/// Prints {"loss", "tokens", "perplexity", "losses", ...} or lines for people.
/// @param compare the base without its adapter too: "base" {"loss", "perplexity", "losses"}, and
/// "loss_difference" and "perplexity_ratio", both of the adapted model over the base
/// @returns exit code
int evaluate_and_print(const EvaluateOptions& options, bool compare, bool json);

}  // namespace poros
