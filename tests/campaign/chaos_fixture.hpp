// SPDX-License-Identifier: Apache-2.0
// A campaign of fake cells over the ranks of mpirun, or in one process, whose processes can be
// found by what they are, so that a test can kill or stop any of them at any moment.
#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

#include "driver_fixture.hpp"

namespace poros::testing {

/// mpirun, a rank (alone: the driver), the supervisor of a cell, a cell.
enum class Role { launcher, rank, supervisor, cell };
[[nodiscard]] const char* name_of(Role role);

struct FoundProcess {
  pid_t pid = 0;
  Role role = Role::cell;
  int rank = 0;  // of a rank; -1: unknown
};

class ChaosTest : public DriverTest {
 protected:
  static constexpr int kRanks = 4;
  static constexpr double kSilent_s = 4;  // a rank that is not heard of for so long is given up

  void SetUp() override;

  /// Two arms, two passes and the parity gate on each of `groups` placements.
  void write_matrix(int groups);
  /// Starts the campaign with --retry over kRanks ranks below mpirun, or in one process. Its output
  /// is appended to driver.log.
  [[nodiscard]] pid_t start_matrix(bool over_ranks);
  /// The same, to its end.
  int run_matrix(bool over_ranks);
  /// Waits for a child with a deadline. @returns its exit code, 128 + signal, or -1: it still runs
  static int wait_at_most(pid_t child, double seconds);
  [[nodiscard]] std::vector<FoundProcess> processes() const;
  /// The driver's output since the last call.
  std::string news();
  /// Every accepted line of the journal.
  [[nodiscard]] std::vector<std::string> lines() const;
  /// Each pass of each cell has one attempt that ended ok, and none after it.
  void expect_each_pass_once(std::size_t cells, std::size_t passes) const;

 private:
  std::size_t log_read_ = 0;
};

/// main()'s part of `__matrix SPEC DIR SILENT_S`: with --retry, over the ranks of its launcher.
int matrix_main(int argc, char** argv);

}  // namespace poros::testing
