// SPDX-License-Identifier: Apache-2.0
// Who may write a journal. A lease is a file `<journal>.lease.<epoch>` made by O_EXCL, one an
// epoch: to take over from the holder of epoch e a process must make the file of epoch e + 1, which
// exactly one can do. The highest epoch is the holder. No file lock is used (NFS).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace poros {

struct LeaseHolder {
  std::string host, boot_id,
      pid_namespace;  // together they say whether `pid` can be looked up here
  std::int64_t pid = 0;
  std::int64_t pid_start = 0;  // start time of the process [clock ticks since boot]
  std::string job, restart;    // SLURM_JOB_ID, SLURM_RESTART_COUNT
  std::int64_t epoch = 0;
  bool released = false;                 // ended in order
  std::optional<std::int64_t> receipts;  // how many the journal held at the end
};

/// "pid 123 on node7, job 99.1 (epoch 4)"
[[nodiscard]] std::string describe(const LeaseHolder& holder);

enum class LeaseState {
  none,      // nobody ever held it
  released,  // the last holder ended in order
  live,      // its process runs here, or its heartbeat is fresh
  dead,      // its process on this host is gone
  stale,     // of another host, and without a heartbeat for longer than stale_after_s
};

struct LeaseView {
  LeaseState state = LeaseState::none;
  std::optional<LeaseHolder> holder;  // absent for none, and while a lease is just being written
  double heartbeat_age_s = 0;         // by the file server's clock where the folder is writable
  std::int64_t epoch = -1;            // -1: no lease file
};

inline constexpr double kLeaseStaleAfter_s = 60;

/// Reads the lease of a journal; changes nothing but, in a writable folder, makes and removes a
/// small file to learn the file server's time. @throws Error(Fault::io)
[[nodiscard]] LeaseView view_lease(const std::filesystem::path& journal,
                                   double stale_after_s = kLeaseStaleAfter_s);

/// This process as a holder.
[[nodiscard]] LeaseHolder this_process(std::string job, std::string restart);

/// Makes the lease file of holder.epoch. @returns false when another process was first.
[[nodiscard]] bool make_lease(const std::filesystem::path& journal, const LeaseHolder& holder);

/// Says that the holder is alive (sets the file's times). @returns false when a newer epoch exists
/// or the file is gone: the lease is lost.
[[nodiscard]] bool touch_lease(const std::filesystem::path& journal, std::int64_t epoch);

/// Marks the lease as released, the journal holding that many receipts.
void release_lease(const std::filesystem::path& journal, LeaseHolder holder, std::int64_t receipts);

/// Gives a lease up as if it had never been made (its maker could not open the journal).
void remove_lease(const std::filesystem::path& journal, std::int64_t epoch);

/// Removes lease files of epochs below `epoch`.
void remove_older_leases(const std::filesystem::path& journal, std::int64_t epoch);

}  // namespace poros
