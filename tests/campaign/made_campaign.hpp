// SPDX-License-Identifier: Apache-2.0
// Large campaigns for benchmarks and tests of scale: one arm on many placements of the project's
// own small model. Their cells are fake (fake_cell.hpp), or their records are made up without any
// cell having run.
#pragma once

#include <cstdint>
#include <filesystem>

namespace poros::testing {

struct MadeCampaign {
  std::filesystem::path root;  // holds spec.yaml, the cells' settings and the cache
  std::int64_t cells = 1;
  std::int64_t steps = 8;

  [[nodiscard]] std::filesystem::path spec() const { return root / "spec.yaml"; }
  [[nodiscard]] std::filesystem::path dir() const { return root / "out"; }
  /// One line a cell that was started.
  [[nodiscard]] std::filesystem::path calls() const { return root / "cells.json.calls"; }
};

/// Makes an empty folder in memory (/dev/shm where there is one) or below `where`, writes the spec
/// and points the environment of this process at it.
/// @param cells at least so many: models times placements
[[nodiscard]] MadeCampaign make_campaign(std::int64_t cells, std::int64_t steps,
                                         const std::filesystem::path& where = {});

/// Writes the records of the first `finished` cells as if they had run: a pass, its series, and an
/// artifact each; two receipts a cell. The numbers are made up.
void make_records(const MadeCampaign& campaign, std::int64_t finished);

}  // namespace poros::testing
