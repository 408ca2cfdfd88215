// SPDX-License-Identifier: Apache-2.0
// The driver's side of a cell: starts it under a supervisor, reads its log and events, watches its
// deadlines and waits until nothing of it is left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cell/oom.hpp"
#include "cell/redact.hpp"
#include "cell/watchdog.hpp"
#include "spec/spec.hpp"

namespace poros {

struct CellCommand {
  std::vector<std::string> argv;
  std::map<std::string, std::string> environment;  // the whole of it; see cell_environment
  std::string tag;                                 // value of kCellTagVariable, one a try
  std::filesystem::path log_path;                  // its folder must exist
  std::filesystem::path supervisor_program = "/proc/self/exe";
  TimeoutSpec timeouts;
  double grace_s = 5;  // between SIGTERM and SIGKILL
  std::size_t log_limit_bytes = std::size_t{8} << 20;
};

struct CellHooks {
  EventHandler on_event;                 // after each event of the cell
  std::function<void()> on_tick;         // about five times a second
  std::function<bool()> stop_requested;  // true: end the cell now
  int wake_fd = -1;                      // readable when stop_requested may have changed
};

struct CellOutcome {
  enum class End {
    exited,        // code is the exit code
    signalled,     // code is the signal
    start_failed,  // nothing ran; detail says why
    lost,          // the supervisor was killed or did not answer; detail says more
  };
  End end = End::lost;
  int code = 0;
  std::string deadline;     // load | step | cell: the one that it missed and was ended for
  bool stopped = false;     // ended because stop_requested
  bool oom_killed = false;  // ended by the kernel's out-of-memory killer
  int survivors = 0;        // processes that outlived SIGKILL (state D)
  std::string detail;
  double wall_s = 0;
  std::string started_at, finished_at;
  CellProgress last;
  std::int64_t events = 0, malformed_events = 0;
  std::uint64_t log_bytes = 0;
  std::string log_tail;   // last 4 KiB, redacted
  std::string log_error;  // the log is not complete, and why
};

/// The environment of a cell: `base` without what belongs to the launcher's MPI job or job step
/// (OMPI_*, PMIX_*, PMI_*, PRTE_*, ORTE_*, SLURM_STEP*, SRUN*) and without an older cell's
/// variables; for device "cpu" no GPU is visible, and idle OpenMP threads sleep unless the user set
/// OMP_WAIT_POLICY.
[[nodiscard]] std::map<std::string, std::string> cell_environment(
    std::map<std::string, std::string> base, const std::string& device);

/// Runs a cell to its end. When it returns, no process of the cell is left (outcome.survivors
/// apart) and no descriptor of it is open. To be called on the main thread, one cell at a time.
/// @throws Error(Fault::environment) when no process or pipe can be made, Error(Fault::io) when the
/// log can't be created
[[nodiscard]] CellOutcome run_cell(const CellCommand& command, const CellHooks& hooks,
                                   const Redactor& redactor, const OomCounter& oom);

/// Makes this process the reaper of orphaned descendants, so that run_cell can also reap what a
/// killed supervisor left.
void become_subreaper();

}  // namespace poros
