// SPDX-License-Identifier: Apache-2.0
#include "cell/processes.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <set>

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "base/clock.hpp"
#include "base/files.hpp"

namespace poros {
namespace {

/// Content of a small /proc file; empty when the process is gone or may not be read.
std::string read_proc(const std::string& path, std::size_t max_bytes = std::size_t{1} << 20) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  if (!fd) return text;
  std::array<char, 16384> buffer{};
  while (text.size() < max_bytes) {
    const ssize_t got = ::read(fd.get(), buffer.data(), buffer.size());
    if (got <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return text;
}

bool read_info(pid_t pid, ProcessInfo& info) {
  const std::string stat = read_proc("/proc/" + std::to_string(pid) + "/stat");
  // "pid (name) state ppid pgrp session ...": the name may hold spaces and parentheses.
  const auto after_name = stat.rfind(')');
  if (after_name == std::string::npos) return false;
  info.pid = pid;
  return std::sscanf(stat.c_str() + after_name + 1, " %c %d %d %d", &info.state, &info.parent,
                     &info.group, &info.session) == 4;
}

void sleep_ms(long milliseconds) {
  const timespec pause{0, milliseconds * 1'000'000};
  ::nanosleep(&pause, nullptr);
}

}  // namespace

std::vector<ProcessInfo> list_processes() {
  std::vector<ProcessInfo> result;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc"), ::closedir);
  if (!folder) return result;
  while (const dirent* entry = ::readdir(folder.get())) {
    char* end = nullptr;
    const long pid = std::strtol(entry->d_name, &end, 10);
    ProcessInfo info;
    if (end != entry->d_name && *end == '\0' && pid > 0 &&
        read_info(static_cast<pid_t>(pid), info)) {
      result.push_back(info);
    }
  }
  return result;
}

std::vector<ProcessInfo> descendants(pid_t ancestor) {
  const std::vector<ProcessInfo> all = list_processes();
  std::set<pid_t> family{ancestor};
  std::vector<ProcessInfo> result;
  // Children can have smaller ids than their parents (ids wrap round): repeat until nothing is new.
  for (bool grew = true; grew;) {
    grew = false;
    for (const ProcessInfo& info : all) {
      if (family.count(info.parent) != 0 && family.insert(info.pid).second) {
        result.push_back(info);
        grew = true;
      }
    }
  }
  return result;
}

void kill_processes(const std::vector<ProcessInfo>& processes, pid_t spared_group) {
  const pid_t own_group = ::getpgrp();
  std::set<pid_t> groups;
  for (const ProcessInfo& info : processes) {
    if (info.group > 1 && info.group != own_group && info.group != spared_group) {
      groups.insert(info.group);
    }
  }
  for (const pid_t group : groups) ::kill(-group, SIGKILL);
  for (const ProcessInfo& info : processes) {
    if (info.pid > 1 && info.state != 'Z') ::kill(info.pid, SIGKILL);
  }
}

std::vector<ProcessInfo> tagged_processes(const std::string& variable, std::string_view prefix) {
  std::vector<ProcessInfo> result;
  const std::string wanted = variable + "=" + std::string(prefix);
  const pid_t self = ::getpid();
  for (const ProcessInfo& info : list_processes()) {
    if (info.pid == self || info.state == 'Z') continue;
    const std::string environment = read_proc("/proc/" + std::to_string(info.pid) + "/environ");
    std::size_t at = 0;
    while (at < environment.size()) {
      if (environment.compare(at, wanted.size(), wanted) == 0) {
        result.push_back(info);
        break;
      }
      const auto end = environment.find('\0', at);
      if (end == std::string::npos) break;
      at = end + 1;
    }
  }
  return result;
}

int kill_tagged(const std::string& variable, std::string_view prefix, double deadline_s) {
  const double deadline = monotonic_s() + deadline_s;
  while (true) {
    const std::vector<ProcessInfo> found = tagged_processes(variable, prefix);
    if (found.empty() || monotonic_s() > deadline) return static_cast<int>(found.size());
    kill_processes(found, 0);
    sleep_ms(2);
  }
}

}  // namespace poros
