// SPDX-License-Identifier: Apache-2.0
#include "receipts/lease.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <sstream>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/json.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

// A lease that can't be read is one that is being written; after this long its maker must have
// died.
constexpr double kHalfWritten_s = 5;

fs::path folder_of(const fs::path& journal) {
  return journal.has_parent_path() ? journal.parent_path() : fs::path(".");
}

fs::path lease_path(const fs::path& journal, std::int64_t epoch) {
  return folder_of(journal) / fmt::format("{}.lease.{}", journal.filename().string(), epoch);
}

std::vector<std::int64_t> lease_epochs(const fs::path& journal) {
  std::vector<std::int64_t> epochs;
  const std::string prefix = journal.filename().string() + ".lease.";
  std::error_code error;
  for (fs::directory_iterator it(folder_of(journal), error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(prefix)) continue;
    std::int64_t epoch = 0;
    const char* first = name.data() + prefix.size();
    const char* last = name.data() + name.size();
    const auto parsed = std::from_chars(first, last, epoch);
    if (parsed.ec == std::errc() && parsed.ptr == last && epoch >= 0) epochs.push_back(epoch);
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    fail(Fault::io, "{}: can't list the folder: {}", folder_of(journal).string(), error.message());
  }
  return epochs;
}

std::string first_line(const char* path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

struct ProcessState {
  char state = '?';
  std::int64_t start = -1;  // clock ticks since boot
};

/// From /proc/<pid>/stat; nullopt when there is no such process.
std::optional<ProcessState> process_state(std::int64_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(in, text)) return std::nullopt;
  const auto after_name = text.rfind(')');  // the name may hold spaces and brackets
  if (after_name == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(after_name + 1));
  ProcessState result;
  fields >> result.state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  fields >> result.start;
  return fields ? std::optional(result) : std::nullopt;
}

double seconds(const timespec& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

/// Now by the clock of the machine that serves the folder, so that skewed clocks don't matter; by
/// the local clock where the folder can't be written.
double file_server_now_s(const fs::path& folder) {
  std::string name = (folder / ".clock.XXXXXX").string();
  const UniqueFd fd(::mkostemp(name.data(), O_CLOEXEC));
  struct stat info {};
  if (fd) {
    const bool known = ::futimens(fd.get(), nullptr) == 0 && ::fstat(fd.get(), &info) == 0;
    ::unlink(name.c_str());
    if (known) return seconds(info.st_mtim);
  }
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return seconds(now);
}

Json to_json(const LeaseHolder& holder) {
  return {{"host", holder.host},
          {"boot_id", holder.boot_id},
          {"pid_namespace", holder.pid_namespace},
          {"pid", holder.pid},
          {"pid_start", holder.pid_start},
          {"job", holder.job},
          {"restart", holder.restart},
          {"epoch", holder.epoch},
          {"released", holder.released},
          {"receipts", holder.receipts ? Json(*holder.receipts) : Json(nullptr)}};
}

LeaseHolder holder_from_json(const Json& json, const std::string& origin) {
  LeaseHolder holder;
  holder.host = json_get<std::string>(json, "host", origin);
  holder.boot_id = json_get<std::string>(json, "boot_id", origin);
  holder.pid_namespace = json_get<std::string>(json, "pid_namespace", origin);
  holder.pid = json_get<std::int64_t>(json, "pid", origin);
  holder.pid_start = json_get<std::int64_t>(json, "pid_start", origin);
  holder.job = json_get<std::string>(json, "job", origin);
  holder.restart = json_get<std::string>(json, "restart", origin);
  holder.epoch = json_get<std::int64_t>(json, "epoch", origin);
  holder.released = json_get<bool>(json, "released", origin);
  holder.receipts = json_find<std::int64_t>(json, "receipts", origin);
  return holder;
}

LeaseState state_of(const LeaseHolder& holder, double age_s, double stale_after_s) {
  if (holder.released) return LeaseState::released;
  const LeaseHolder self = this_process("", "");
  const bool same_machine = holder.host == self.host && holder.boot_id == self.boot_id &&
                            holder.pid_namespace == self.pid_namespace;
  if (same_machine) {
    const auto process = process_state(holder.pid);
    const bool runs = process && process->start == holder.pid_start && process->state != 'Z' &&
                      process->state != 'X';
    return runs ? LeaseState::live : LeaseState::dead;
  }
  return age_s > stale_after_s ? LeaseState::stale : LeaseState::live;
}

}  // namespace

std::string describe(const LeaseHolder& holder) {
  return fmt::format("pid {} on {}{}{} (epoch {})", holder.pid, holder.host,
                     holder.job.empty() ? "" : ", job " + holder.job,
                     holder.restart.empty() ? "" : " restart " + holder.restart, holder.epoch);
}

LeaseView view_lease(const fs::path& journal, double stale_after_s) {
  // The highest file may vanish between listing and reading, when its successor cleans up.
  for (int attempt = 0; attempt < 10; ++attempt) {
    const auto epochs = lease_epochs(journal);
    if (epochs.empty()) return {};
    LeaseView view;
    view.epoch = *std::max_element(epochs.begin(), epochs.end());
    const fs::path path = lease_path(journal, view.epoch);
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) {
      if (errno == ENOENT) continue;
      fail_errno(Fault::io, path.string());
    }
    const double age_s = file_server_now_s(folder_of(journal)) - seconds(info.st_mtim);
    view.heartbeat_age_s = std::max(0.0, age_s);
    try {
      view.holder =
          holder_from_json(parse_json(read_file(path, 1 << 16), path.string()), path.string());
      view.state = state_of(*view.holder, view.heartbeat_age_s, stale_after_s);
    } catch (const Error&) {
      if (!fs::exists(path)) continue;
      view.state = view.heartbeat_age_s > kHalfWritten_s ? LeaseState::stale : LeaseState::live;
    }
    return view;
  }
  fail(Fault::io, "{}: its lease changes hands too fast to be read", journal.string());
}

LeaseHolder this_process(std::string job, std::string restart) {
  LeaseHolder holder;
  char host[HOST_NAME_MAX + 1] = {};
  if (::gethostname(host, sizeof host - 1) != 0) fail_errno(Fault::environment, "gethostname");
  holder.host = host;
  holder.boot_id = first_line("/proc/sys/kernel/random/boot_id");
  std::error_code error;
  holder.pid_namespace = fs::read_symlink("/proc/self/ns/pid", error).string();
  holder.pid = ::getpid();
  const auto process = process_state(holder.pid);
  if (!process) fail(Fault::environment, "/proc/self/stat can't be read");
  holder.pid_start = process->start;
  holder.job = std::move(job);
  holder.restart = std::move(restart);
  return holder;
}

bool make_lease(const fs::path& journal, const LeaseHolder& holder) {
  const fs::path path = lease_path(journal, holder.epoch);
  UniqueFd fd(::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644));
  if (!fd) {
    if (errno == EEXIST) return false;
    fail_errno(Fault::io, path.string() + ": create");
  }
  try {
    const std::string text = dump_json(to_json(holder)) + "\n";
    write_all(fd.get(), text.data(), text.size(), path);
    if (::fsync(fd.get()) != 0) fail_errno(Fault::io, path.string() + ": sync");
    sync_folder(folder_of(journal));
    // A folder is not listed in one moment: who looked while another took the lease and cleaned up
    // may have seen an older state, or nothing. Whoever made a higher epoch did so before; he is
    // right.
    const auto epochs = lease_epochs(journal);
    if (std::any_of(epochs.begin(), epochs.end(), [&](auto e) { return e > holder.epoch; })) {
      ::unlink(path.c_str());
      return false;
    }
  } catch (...) {
    ::unlink(path.c_str());
    throw;
  }
  return true;
}

bool touch_lease(const fs::path& journal, std::int64_t epoch) {
  const fs::path path = lease_path(journal, epoch);
  if (fs::exists(lease_path(journal, epoch + 1))) return false;
  if (::utimensat(AT_FDCWD, path.c_str(), nullptr, 0) == 0) return true;
  if (errno == ENOENT) return false;
  fail_errno(Fault::io, path.string() + ": set time");
}

void release_lease(const fs::path& journal, LeaseHolder holder, std::int64_t receipts) {
  holder.released = true;
  holder.receipts = receipts;
  write_file_durably(lease_path(journal, holder.epoch), dump_json(to_json(holder)) + "\n");
}

void remove_lease(const fs::path& journal, std::int64_t epoch) {
  ::unlink(lease_path(journal, epoch).c_str());
}

void remove_older_leases(const fs::path& journal, std::int64_t epoch) {
  for (const std::int64_t older : lease_epochs(journal)) {
    if (older < epoch) remove_lease(journal, older);
  }
}

}  // namespace poros
