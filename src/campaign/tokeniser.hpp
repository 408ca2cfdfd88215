// SPDX-License-Identifier: Apache-2.0
// The tokenising step: text to token files, by a Python process
// (src/peers/poros_peers/tokenise.py).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "campaign/arms.hpp"
#include "spec/spec.hpp"

namespace poros {

/// What the step made of a dataset.
struct TokenisedData {
  std::filesystem::path path;  // inputs/<sha256>.tokens
  std::string sha256;
  std::filesystem::path validation_path;  // empty: the dataset keeps nothing to evaluate on
  std::string validation_sha256;
  Json statistics;   // docs/data.md
  std::string text;  // the same for people, several lines
};

/// The request of tokenise.py for a training.
/// @param all_rows every row of the data, whatever the steps need
[[nodiscard]] Json token_request(const TrainingSpec& training,
                                 const std::filesystem::path& model_dir,
                                 const std::filesystem::path& inputs_dir, bool all_rows = false);

/// Runs the step.
/// @throws Error(Fault::input) with what is wrong with the data, Error(Fault::environment) where
/// Python or a package is missing
[[nodiscard]] TokenisedData tokenise(const InstallPaths& paths, const Json& request);

/// Identifies what a request's result depends on: its text, and the content of the files that it
/// names.
[[nodiscard]] std::string token_request_id(Json request);

/// Ids of a prompt, and what ends an answer.
struct PromptTokens {
  std::vector<std::uint32_t> ids, stop_ids;
};

/// @param chat write `text` as a user's message, by the model's chat template
/// @param chat_template a Jinja file in its place; empty: the model's own
/// @throws as tokenise()
[[nodiscard]] PromptTokens encode_prompt(const InstallPaths& paths,
                                         const std::filesystem::path& model_dir,
                                         const std::string& text, bool chat,
                                         const std::filesystem::path& chat_template = {});
/// The text of ids, without special tokens.
[[nodiscard]] std::string decode_tokens(const InstallPaths& paths,
                                        const std::filesystem::path& model_dir,
                                        const std::vector<std::uint32_t>& ids);

}  // namespace poros
