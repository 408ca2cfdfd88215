// SPDX-License-Identifier: Apache-2.0
#include "campaign/admission.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>

#include <unistd.h>

#include "base/text.hpp"

namespace poros {
namespace {

/// A number alone in a file of the kernel; nothing for "max" and where the file is not there.
std::optional<std::int64_t> number_in(const std::string& path) {
  std::ifstream in(path);
  std::string text;
  std::int64_t value = 0;
  if (!(in >> text)) return std::nullopt;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc()) return std::nullopt;
  return value;
}

/// The smallest limit on the way from this process's memory cgroup to the root.
std::int64_t cgroup_limit_bytes() {
  std::int64_t limit = std::numeric_limits<std::int64_t>::max();
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const auto parts = split(line, ':');
    if (parts.size() < 3) continue;
    const bool v2 = parts[0] == "0" && parts[1].empty();
    if (!v2 && ("," + parts[1] + ",").find(",memory,") == std::string::npos) continue;
    const std::string root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    const char* file = v2 ? "/memory.max" : "/memory.limit_in_bytes";
    std::string path = parts[2] == "/" ? "" : parts[2];
    while (true) {
      if (const auto found = number_in(root + path + file)) limit = std::min(limit, *found);
      if (path.empty()) break;
      path.erase(path.rfind('/'));
    }
  }
  return limit;
}

}  // namespace

std::int64_t usable_host_bytes() {
  const std::int64_t installed =
      static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  return std::min(installed, cgroup_limit_bytes());
}

bool Admission::admit(int rank, const Pass& pass) {
  running_.erase(rank);
  std::int64_t used = 0;
  bool alone = true, exclusive_runs = false, exclusive_waits = false;
  for (const auto& [other, running] : running_) {
    if (running.host != pass.host) continue;
    alone = false;
    used += running.bytes;
    exclusive_runs = exclusive_runs || running.exclusive;
  }
  for (const auto& [other, host] : waiting_exclusive_) {
    exclusive_waits = exclusive_waits || (other != rank && host == pass.host);
  }
  const bool fits = pass.host_limit_bytes == 0 || used + pass.bytes <= pass.host_limit_bytes;
  const bool admitted = alone ? pass.exclusive || !exclusive_waits
                              : fits && !pass.exclusive && !exclusive_runs && !exclusive_waits;
  if (admitted) {
    waiting_exclusive_.erase(rank);
    running_[rank] = pass;
  } else if (pass.exclusive) {
    waiting_exclusive_[rank] = pass.host;
  }
  return admitted;
}

void Admission::release(int rank) {
  running_.erase(rank);
  waiting_exclusive_.erase(rank);
}

}  // namespace poros
