// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

namespace poros {

/// The local cache of the Hugging Face hub: $HF_HUB_CACHE, else $HF_HOME/hub, else
/// $XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub.
[[nodiscard]] std::filesystem::path hub_cache();

/// Snapshot folder of a model in the local hub cache. Nothing is downloaded.
/// @param revision branch, tag or commit
/// @throws Error(Fault::input) saying where it was looked for and how to fetch it
[[nodiscard]] std::filesystem::path hub_snapshot(const std::string& model_id,
                                                 const std::string& revision);

}  // namespace poros
