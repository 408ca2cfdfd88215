// SPDX-License-Identifier: Apache-2.0
#include "cell/oom.hpp"

#include <fstream>
#include <sstream>
#include <string>

namespace poros {
namespace fs = std::filesystem;
namespace {

/// Mount points of the v2 hierarchy and of v1's memory controller.
struct CgroupMounts {
  fs::path v2, v1_memory;
};

CgroupMounts find_mounts() {
  CgroupMounts mounts;
  std::ifstream table("/proc/self/mounts");
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string device, point, type, options;
    words >> device >> point >> type >> options;
    if (type == "cgroup2" && mounts.v2.empty()) mounts.v2 = point;
    const std::string listed = "," + options + ",";
    if (type == "cgroup" && listed.find(",memory,") != std::string::npos) mounts.v1_memory = point;
  }
  return mounts;
}

}  // namespace

OomCounter::OomCounter() {
  const CgroupMounts mounts = find_mounts();
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:memory:/path" or "0::/path"
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    const bool is_v2 = line.compare(0, first, "0") == 0 && controllers == ",,";
    const bool is_memory = controllers.find(",memory,") != std::string::npos;
    const fs::path mount = is_v2 ? mounts.v2 : (is_memory ? mounts.v1_memory : fs::path());
    if (mount.empty()) continue;
    const char* name = is_v2 ? "memory.events" : "memory.oom_control";
    // In a container the path can be the host's, while only its own part is mounted.
    for (const fs::path& file : {fs::path(mount.string() + path) / name, mount / name}) {
      std::error_code error;
      if (fs::exists(file, error)) {
        files_.push_back(file);
        break;
      }
    }
  }
  files_.emplace_back("/proc/vmstat");
}

std::uint64_t OomCounter::read() const {
  std::uint64_t sum = 0;
  for (const fs::path& file : files_) {
    std::ifstream text(file);
    std::string name;
    std::uint64_t value = 0;
    while (text >> name >> value) {
      if (name == "oom_kill") sum += value;
    }
  }
  return sum;
}

bool says_out_of_memory(std::string_view log_tail) {
  static constexpr std::string_view kSaid[] = {
      "terminate called after throwing an instance of 'std::bad_alloc'", "\nMemoryError",
      "cannot allocate memory for thread-local data"};
  for (const std::string_view said : kSaid) {
    if (log_tail.find(said) != log_tail.npos) return true;
  }
  const auto rust = log_tail.find("memory allocation of ");
  return rust != log_tail.npos && log_tail.find(" bytes failed", rust) != log_tail.npos;
}

}  // namespace poros
