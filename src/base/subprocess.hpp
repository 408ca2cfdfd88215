// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

namespace poros {

/// What a short helper command left.
struct ProcessResult {
  int exit_code = -1;  // 128 + signal when a signal ended it
  bool timed_out = false;
  std::string out;  // at most max_output_bytes; the rest is read and dropped
  std::string err;
};

/// Runs a short helper command (the Python tokenising step, git) without a shell and waits for it.
/// Cells are not run this way: they have a supervisor (src/cell).
/// @param argv program (searched on PATH) and arguments
/// @param environment variables added to or replacing the caller's
/// @param timeout_s SIGKILL to its process group after that many seconds
/// @throws Error(Fault::environment) when it can't be started
[[nodiscard]] ProcessResult run_process(const std::vector<std::string>& argv, double timeout_s,
                                        const std::map<std::string, std::string>& environment = {},
                                        std::size_t max_output_bytes = std::size_t{1} << 20);

}  // namespace poros
