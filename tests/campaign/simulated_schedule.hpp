// SPDX-License-Identifier: Apache-2.0
// The real Coordinator, asked by ranks that live in virtual time: how good its order of groups is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace poros::testing {

struct ScheduleOptions {
  std::uint32_t seed = 1;
  int types = 4, ranks_per_type = 16;
  int groups = 2500, cells_per_group = 4;
  bool sizes_known = true;  // false: the spec says nothing of the models' sizes
  bool sick_gpu = true;     // one GPU of each type loses everything that runs on it
};

/// All times are virtual [s].
struct ScheduleFigures {
  struct Type {
    double makespan_s = 0;
    double bound_s = 0;  // max(time of all groups / healthy ranks, longest
                         // group): none is shorter
  };
  std::vector<Type> types;
  double makespan_s = 0, bound_s = 0;
  std::int64_t finished = 0;   // cells with an attempt that counts
  std::int64_t lost = 0;       // attempts
  std::int64_t failed = 0;     // cells
  std::int64_t set_aside = 0;  // GPUs
  std::int64_t twice = 0;      // cells that ran again after an attempt that counts
};

/// Cells take what was predicted times a random factor; 3 % of the attempts are lost on the way and
/// tried again, 2 % of the cells end early in an error.
/// @param dir empty folder for the journal
[[nodiscard]] ScheduleFigures simulate_schedule(const ScheduleOptions& options,
                                                const std::filesystem::path& dir);

}  // namespace poros::testing
