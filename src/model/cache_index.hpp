// SPDX-License-Identifier: Apache-2.0
// index.json of a cache entry: text and back.
#pragma once

#include <string>

#include "model/nf4_cache.hpp"

namespace poros {

[[nodiscard]] std::string cache_index_text(const CacheIndex& index);
/// @throws Error(Fault::input) naming origin: another version, a wrong checksum, a part out of
/// bounds.
[[nodiscard]] CacheIndex parse_cache_index(const std::string& text, const std::string& origin);

}  // namespace poros
