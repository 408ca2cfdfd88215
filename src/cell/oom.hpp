// SPDX-License-Identifier: Apache-2.0
// Whether the kernel's out-of-memory killer was at work: its counters before and after a cell.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

namespace poros {

/// Reads the `oom_kill` counters of this process's memory cgroup (v2 memory.events, v1
/// memory.oom_control) and of the machine (/proc/vmstat), which a cell inherits. One counter alone
/// proves nothing: it counts when the cell was ended by a SIGKILL that this product did not send.
class OomCounter {
 public:
  /// The counters of the calling process; those that can't be read are left out.
  OomCounter();
  explicit OomCounter(std::vector<std::filesystem::path> files) : files_(std::move(files)) {}

  /// Sum over the counters; 0 where none can be read.
  [[nodiscard]] std::uint64_t read() const;
  [[nodiscard]] const std::vector<std::filesystem::path>& files() const { return files_; }

 private:
  std::vector<std::filesystem::path> files_;
};

/// What runtimes write when a process ends for want of memory without a handler of its own: C++ and
/// Rust allocation failures, an uncaught MemoryError. Counts only for a process that failed.
[[nodiscard]] bool says_out_of_memory(std::string_view log_tail);

}  // namespace poros
