// SPDX-License-Identifier: Apache-2.0
// srun passes SIGUSR1 on to every process of a job step, not to the ranks alone. It killed the
// supervisor, and the pass in flight was recorded as lost instead of being finished or drained.
#include <filesystem>

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "cell/cell_process.hpp"
#include "cell/processes.hpp"
#include "cell/supervisor.hpp"

namespace poros {
namespace {

TEST(StepSignal, NeitherSupervisorNorCellDiesOfIt) {
  std::string folder = (std::filesystem::temp_directory_path() / "poros-issue.XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  CellCommand command;
  command.argv = {"/bin/sh", "-c", "sleep 0.7; exit 7"};
  command.environment = cell_environment(current_environment(), "cpu");
  command.tag = "test/" + folder;
  command.log_path = std::filesystem::path(folder) / "log.txt";
  command.timeouts = {.load_s = 30, .step_s = 30, .cell_s = 30};
  int signalled = 0;
  CellHooks hooks;
  hooks.on_tick = [&] {
    for (const ProcessInfo& info : list_processes()) {
      // The supervisor, and below it the shell and its sleep.
      bool below = info.parent == ::getpid();
      for (const ProcessInfo& above : list_processes()) {
        if (above.pid == info.parent) below = below || above.parent == ::getpid();
      }
      if (below && ::kill(info.pid, SIGUSR1) == 0) ++signalled;
    }
  };
  const CellOutcome outcome =
      run_cell(command, hooks, Redactor(), OomCounter(std::vector<std::filesystem::path>()));
  EXPECT_GE(signalled, 2);
  EXPECT_EQ(outcome.end, CellOutcome::End::exited);
  EXPECT_EQ(outcome.code, 7);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace poros

int main(int argc, char** argv) {
  if (poros::is_supervisor_command(argc, argv)) return poros::supervisor_main(argc, argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
