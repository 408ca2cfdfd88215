// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "model/safetensors.hpp"

namespace poros {

/// The identity of a checkpoint: sha256 over config.json's sha256 and, for each weight file by
/// name, its name, size and sha256. A file's sha256 is remembered in memory_folder/digests.json by
/// path, size and modification time, so that a large checkpoint is hashed once; "" remembers
/// nothing.
[[nodiscard]] std::string checkpoint_digest(const std::filesystem::path& folder,
                                            const Checkpoint& checkpoint,
                                            const std::filesystem::path& memory_folder,
                                            int threads = 0);

}  // namespace poros
