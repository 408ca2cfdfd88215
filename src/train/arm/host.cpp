// SPDX-License-Identifier: Apache-2.0
#include "train/arm/host.hpp"

#include <ctime>
#include <fstream>
#include <sstream>

#include <unistd.h>

namespace poros {

std::string cpu_model_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const auto colon = line.find(':');
    if (line.rfind("model name", 0) != 0 || colon == std::string::npos) continue;
    const auto begin = line.find_first_not_of(" \t", colon + 1);
    if (begin != std::string::npos) return line.substr(begin);
  }
  return "cpu";
}

std::optional<double> host_memory_mb() {
  const long pages = ::sysconf(_SC_PHYS_PAGES), page_bytes = ::sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page_bytes <= 0) return std::nullopt;
  return static_cast<double>(pages) * static_cast<double>(page_bytes) / 1048576.0;
}

std::optional<double> process_age_s() {
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  // Field 22 is the start in clock ticks since boot; the name in field 2 may hold spaces and
  // parentheses, so counting begins after the last parenthesis.
  const auto after_name = text.rfind(')');
  if (after_name == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(after_name + 1));
  std::string field;
  for (int number = 3; number <= 22; ++number) {
    if (!(fields >> field)) return std::nullopt;
  }
  timespec now{};
  const long ticks_per_s = ::sysconf(_SC_CLK_TCK);
  if (::clock_gettime(CLOCK_BOOTTIME, &now) != 0 || ticks_per_s <= 0) return std::nullopt;
  const double start_s = std::stod(field) / static_cast<double>(ticks_per_s);
  const double age_s =
      static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9 - start_s;
  // Some sandboxes keep another clock for the start.
  return age_s >= 0 ? std::optional(age_s) : std::nullopt;
}

}  // namespace poros
