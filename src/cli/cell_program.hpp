// SPDX-License-Identifier: Apache-2.0
// Commands that are poros-cell's work: it runs as a child that shares the terminal.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace poros {

/// "cuda" where there is a GPU and the trainer for it, else "cpu", for `auto`; others as they are.
[[nodiscard]] std::string resolve_device(const std::string& device);

/// The trainer of a device; it may be missing.
[[nodiscard]] std::filesystem::path cell_program(const std::string& device);

/// Runs the trainer of a device with these arguments (its command first) and waits. It gets the
/// terminal's signals as this program does, and SIGTERM when this program dies.
/// @returns its exit code; 128 + signal where a signal ended it
/// @throws Error(Fault::environment) when it is missing or can't be started
int run_cell_program(const std::string& device, const std::vector<std::string>& arguments);

/// The folder of a model as the command line names it: a path, or a hub id in the local cache.
/// @throws Error(Fault::input) saying where it was looked for
[[nodiscard]] std::filesystem::path model_from_argument(const std::string& text);

/// A folder for files between this program and others; removed at the end.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace poros
