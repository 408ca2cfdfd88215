// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/files.hpp"
#include "campaign/doctor.hpp"
#include "cell/environment.hpp"

namespace poros {
namespace {

namespace fs = std::filesystem;
constexpr double kGb = 1e9;
constexpr std::size_t kDiskTest_bytes = std::size_t{256} << 20;

Finding row(std::string name, std::string value, Health health = Health::ok,
            std::string mend = "") {
  return {"machine", std::move(name), std::move(value), health, std::move(mend)};
}

/// The limit that a container sets on memory [bytes]; 0: none.
double cgroup_limit() {
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream file(path);
    double bytes = 0;
    if (file >> bytes && bytes > 0 && bytes < 1e15) return bytes;
  }
  return 0;
}

int numa_nodes() {
  int count = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/sys/devices/system/node", error)) {
    const std::string name = entry.path().filename().string();
    if (name.size() > 4 && name.rfind("node", 0) == 0 && std::isdigit(name[4]) != 0) ++count;
  }
  return std::max(count, 1);
}

/// The nearest folder above that exists.
fs::path existing_above(fs::path folder) {
  std::error_code error;
  folder = fs::absolute(folder, error);
  while (!fs::is_directory(folder, error) && folder.has_parent_path() &&
         folder != folder.parent_path()) {
    folder = folder.parent_path();
  }
  return folder;
}

/// Bytes a second of writing with fdatasync, by a file without a name.
double write_rate(const fs::path& folder) {
  const UniqueFd file(::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600));
  if (!file) fail_errno(Fault::io, folder.string());
  // Not zeros: some file systems compress or skip them.
  std::vector<std::uint32_t> block(std::size_t{1} << 20);
  std::uint32_t state = 0x9e3779b9U;
  for (std::uint32_t& word : block) word = state = state * 1664525U + 1013904223U;
  const double begin = monotonic_s();
  for (std::size_t done = 0; done < kDiskTest_bytes; done += 4 * block.size()) {
    write_all(file.get(), block.data(), 4 * block.size(), folder);
  }
  if (::fdatasync(file.get()) != 0) fail_errno(Fault::io, folder.string());
  return static_cast<double>(kDiskTest_bytes) / (monotonic_s() - begin);
}

void examine_folder(const char* name, const fs::path& wanted, bool measure,
                    std::vector<Finding>& findings) {
  const fs::path folder = existing_above(wanted);
  struct statvfs space {};
  if (::statvfs(folder.c_str(), &space) != 0) {
    findings.push_back(
        row(name, wanted.string() + ": can't be looked at", Health::error, "name another folder"));
    return;
  }
  const double free = static_cast<double>(space.f_bavail) * static_cast<double>(space.f_frsize);
  Finding finding = row(name, fmt::format("{}: {:.1f} GB free", wanted.string(), free / kGb));
  if (::access(folder.c_str(), W_OK) != 0) {
    finding.health = Health::error;
    finding.mend = fmt::format("{} can't be written by this user", folder.string());
  } else if (free < 2 * kGb) {
    finding.health = Health::error;
    finding.mend = "less than 2 GB: a 0.5B model and its records need more; make room";
  } else if (free < 20 * kGb) {
    finding.health = Health::warn;
    finding.mend = "a 32B model's quantised base takes 17 GB, a 72B's 37 GB";
  }
  if (measure && finding.health != Health::error) {
    try {
      finding.value += fmt::format(", writes {:.2f} GB/s", write_rate(folder) / kGb);
    } catch (const Error&) {  // no unnamed files here (some network file systems)
      finding.value += ", rate not measured";
    }
  }
  findings.push_back(finding);
}

}  // namespace

void examine_host(const DoctorOptions& options, std::vector<Finding>& findings) {
  findings.push_back(row(
      "CPU", fmt::format("{} hardware threads, {} NUMA node{}", std::thread::hardware_concurrency(),
                         numa_nodes(), numa_nodes() == 1 ? "" : "s")));
  const double total = meminfo_bytes("MemTotal").value_or(0),
               available = meminfo_bytes("MemAvailable").value_or(0);
  Finding memory =
      row("memory", fmt::format("{:.1f} GB, {:.1f} GB available", total / kGb, available / kGb));
  const double limit = cgroup_limit();
  if (limit > 0 && limit < total) {
    memory.value += fmt::format(", limited to {:.1f} GB by a control group", limit / kGb);
  }
  if (available < 4 * kGb) {
    memory.health = Health::warn;
    memory.mend = "poros keeps the quantised base in host memory: 4 GB for 7B, 17 GB for 32B";
  }
  findings.push_back(memory);
  rlimit locked{};
  if (::getrlimit(RLIMIT_MEMLOCK, &locked) == 0 && locked.rlim_cur != RLIM_INFINITY) {
    Finding lock = row("locked memory", fmt::format("{:.3f} GB (ulimit -l)",
                                                    static_cast<double>(locked.rlim_cur) / kGb));
    lock.health = Health::note;
    lock.mend =
        "the NVIDIA driver does not count against it on bare machines; in containers use "
        "--ulimit memlock=-1";
    findings.push_back(lock);
  }
  examine_folder("cache", options.cache, options.measure, findings);
  examine_folder("results", options.results, options.measure, findings);
}

}  // namespace poros
