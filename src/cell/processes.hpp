// SPDX-License-Identifier: Apache-2.0
// Finding and ending processes through /proc.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

namespace poros {

struct ProcessInfo {
  pid_t pid = 0, parent = 0, group = 0, session = 0;
  char state = '?';  // R, S, D, T, Z, ... as in /proc/<pid>/stat
};

/// Every process of the machine that /proc shows, zombies included.
[[nodiscard]] std::vector<ProcessInfo> list_processes();

/// All descendants of `ancestor` (not itself). With a subreaper as ancestor these are all processes
/// that were ever started below it and still exist, whatever sessions and groups they moved to.
[[nodiscard]] std::vector<ProcessInfo> descendants(pid_t ancestor);

/// Sends SIGKILL to each of these processes and to their process groups (a group signal also
/// reaches a child that is being forked at that moment). Own group and `spared_group` are left
/// alone.
void kill_processes(const std::vector<ProcessInfo>& processes, pid_t spared_group);

/// Living processes (no zombies) whose environment, as it was when they were started, has
/// `variable` with a value that begins with `prefix`. The calling process is left out.
[[nodiscard]] std::vector<ProcessInfo> tagged_processes(const std::string& variable,
                                                        std::string_view prefix);

/// Kills tagged processes until none is left or the deadline has passed.
/// @returns how many are left: processes that even SIGKILL does not end (state D)
int kill_tagged(const std::string& variable, std::string_view prefix, double deadline_s);

}  // namespace poros
