// SPDX-License-Identifier: Apache-2.0
// The small process between a driver and a cell. It exists so that nothing of a cell outlives it,
// whatever the cell does and whoever is killed:
//
//   driver (or MPI rank) --control pipe--> supervisor --> cell --> whatever the cell starts
//                        <--report pipe---
//
// The supervisor is a session of its own and the subreaper of all that the cell starts, so a
// process that leaves the cell's group or session, or is orphaned, becomes the supervisor's child.
// "No child left" (ECHILD) therefore means that no process of the cell is left. It waits on a pipe
// whose write end only the driver holds: when the driver dies, however it dies, the pipe ends and
// the supervisor kills everything. When the supervisor itself is killed, the cell's parent-death
// signal ends the cell, and the driver (or the next driver) finds the rest by kCellTagVariable.
#pragma once

namespace poros {

/// Hidden first argument of `poros`: `poros __supervise <launcher pid> <grace ms> <program>
/// [args]`. Descriptors: 0 /dev/null, 1 and 2 the cell's log, 3 control (read), 4 report (write), 5
/// events (write; the cell finds it as POROS_EVENT_FD).
inline constexpr const char* kSuperviseCommand = "__supervise";

/// Bytes on the control pipe.
inline constexpr char kControlTerminate = 't';  // SIGTERM to the group, SIGKILL after the grace
inline constexpr char kControlKill = 'k';       // SIGKILL at once

/// True when argv is a supervisor's command line: main() then returns supervisor_main at once,
/// before it opens files, starts threads or parses anything.
[[nodiscard]] bool is_supervisor_command(int argc, char** argv);

/// The supervisor. Reports JSON lines: {"pid": n} once the cell runs or {"failed": text} when it
/// can't be started; {"exit": code} or {"signal": n, "core": bool}; {"survivors": n} as last line.
/// @returns the process's exit code
int supervisor_main(int argc, char** argv);

}  // namespace poros
