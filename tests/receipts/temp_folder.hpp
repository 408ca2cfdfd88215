// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>

#include <stdlib.h>
#include <unistd.h>

namespace poros::testing {

/// A fresh folder that is removed at the end of the test; in memory where there is a /dev/shm,
/// since thousands of syncs to a disk would take minutes.
class TempFolder {
 public:
  TempFolder() {
    const bool memory = ::access("/dev/shm", W_OK) == 0;
    const std::filesystem::path root = memory ? "/dev/shm" : std::filesystem::temp_directory_path();
    std::string name = (root / "poros-test.XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~TempFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::filesystem::path operator/(const std::string& name) const {
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace poros::testing
