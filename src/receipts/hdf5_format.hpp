// SPDX-License-Identifier: Apache-2.0
// What writer and reader of campaign.h5 agree on beside the layout in hdf5_store.hpp.
#pragma once

#include <cstdint>
#include <string>

namespace poros::h5 {

inline constexpr const char* kFormat = "poros-campaign";
inline constexpr const char* kVersion = "1.0";  // another major: another layout

/// A row of /files/index.
struct FileEntry {
  std::string kind;  // cell | pass (of the cell before it) | parity
  std::string path, sha256, key;
  std::string series;  // <group>/<dataset> below /series, for passes
  std::int64_t seq = -1, offset = 0, bytes = 0;
};

}  // namespace poros::h5
