// SPDX-License-Identifier: Apache-2.0
// Models in the local cache of the Hugging Face hub. Nothing here uses the network.
#pragma once

#include <filesystem>
#include <string>

namespace poros {

/// $HF_HUB_CACHE, else $HF_HOME/hub, else $XDG_CACHE_HOME/huggingface/hub, else
/// ~/.cache/huggingface/hub.
[[nodiscard]] std::filesystem::path hub_cache_folder();

/// True for "org/name" or "name"; false for what is a path ("/...", "./...", "../...", "~...").
[[nodiscard]] bool is_hub_id(const std::string& model_id);

/// The folder (or file) of a model: a path, relative ones from `spec_folder`; or a hub id, found as
/// <hub cache>/models--<org>--<name>/snapshots/<commit>, where `revision` is a commit or a name in
/// refs/ ("main").
/// @throws Error(Fault::input) saying where it was looked for and how to fetch it.
[[nodiscard]] std::filesystem::path resolve_model(const std::string& model_id,
                                                  const std::string& revision,
                                                  const std::filesystem::path& spec_folder);

}  // namespace poros
