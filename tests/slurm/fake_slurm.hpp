// SPDX-License-Identifier: Apache-2.0
// Slurm's commands as small scripts on PATH that write down how they were called and answer what a
// test has prepared: for the faults that no real Slurm shows on demand.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace poros {

class FakeSlurm {
 public:
  FakeSlurm();
  ~FakeSlurm();
  FakeSlurm(const FakeSlurm&) = delete;
  FakeSlurm& operator=(const FakeSlurm&) = delete;

  /// A folder for the test's own files; removed at the end.
  [[nodiscard]] std::filesystem::path folder() const { return folder_ / "work"; }

  /// Replaces a command. `body` is shell text; what it was called with is written down before.
  void command(const std::string& name, const std::string& body);
  /// As if it were not installed; from then on PATH holds the fakes alone.
  void remove(const std::string& name);

  /// The calls of a command so far, each with its arguments.
  [[nodiscard]] std::vector<std::vector<std::string>> calls(const std::string& name) const;

 private:
  std::filesystem::path folder_;
  std::string old_path_;
};

/// Writes a small CPU spec into `folder` for these GPU names. @returns its path
std::filesystem::path write_spec(const std::filesystem::path& folder, const std::string& gpu_name,
                                 const std::string& name = "spec.yaml");

/// Writes a profile with the types A100 and B300. `more` are lines at its top.
std::filesystem::path write_profile(const std::filesystem::path& folder,
                                    const std::string& more = "");

void write_text(const std::filesystem::path& path, const std::string& text);

}  // namespace poros
