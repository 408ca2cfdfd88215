// SPDX-License-Identifier: Apache-2.0
// How the thin products are cut, from shapes alone: the order of their sums. Internal to kernels/.
#pragma once

#include <algorithm>
#include <cstdint>

namespace poros {

inline constexpr std::int64_t kProjectRows = 64;           // rows of one thread block
inline constexpr std::int64_t kProjectMostSplits = 8;      // parts of the sum over the width
inline constexpr std::int64_t kProjectTargetBlocks = 512;  // some four a multiprocessor
inline constexpr std::int64_t kProjectMostColumns = 256;   // splits * rank: bounds the workspace
inline constexpr std::int64_t kOuterTile = 64;    // columns of the wide side a thread block
inline constexpr std::int64_t kOuterGroup = 512;  // rows of one partial sum

/// Into how many parts the sum over `width` is cut, at least 256 columns each.
[[nodiscard]] constexpr std::int64_t project_splits(std::int64_t rows, std::int64_t width,
                                                    std::int64_t rank) {
  const std::int64_t tiles = (rows + kProjectRows - 1) / kProjectRows;
  const std::int64_t wanted = (kProjectTargetBlocks + tiles - 1) / tiles;
  return std::clamp<std::int64_t>(std::min({wanted, width / 256, kProjectMostColumns / rank}), 1,
                                  kProjectMostSplits);
}

[[nodiscard]] constexpr std::int64_t outer_groups(std::int64_t rows) {
  return (rows + kOuterGroup - 1) / kOuterGroup;
}

}  // namespace poros
