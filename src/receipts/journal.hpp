// SPDX-License-Identifier: Apache-2.0
// The journal (results.jsonl): append-only, one writer, one write a record. Promises:
//   - a receipt that append() returned is on disk and is read back byte for byte, or append()
//   threw;
//   - a torn tail costs at most the record that was not acknowledged and is repaired by the next
//     writer; damage anywhere else is refused with line and offset, never skipped;
//   - a second writer is refused with the name of the first; a dead one is taken over: the accepted
//     records are copied to a new file that is renamed over the journal, and what the old writer
//     still appends lands in its own file, results.<epoch>.jsonl, unacknowledged.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include "receipts/lease.hpp"
#include "receipts/receipt.hpp"

namespace poros {

inline constexpr const char* kJournalName = "results.jsonl";

/// The system calls that a journal makes, replaceable in tests. Returns and errno as in POSIX.
class FileOps {
 public:
  virtual ~FileOps() = default;
  virtual ssize_t write(int fd, const void* from, std::size_t bytes);
  virtual int fdatasync(int fd);
  virtual int fsync(int fd);
  virtual int ftruncate(int fd, off_t bytes);
  virtual int rename(const char* from, const char* to);
};

struct JournalContent {
  std::vector<Receipt> receipts;
  std::uint64_t valid_bytes = 0;   // up to and with the last accepted record
  std::uint64_t torn_bytes = 0;    // after it
  bool last_line_unended = false;  // the last record is whole but lacks its '\n'
  std::int64_t last_epoch = -1;    // of the last record
  std::string sha256;              // of the accepted records' text
};

/// Reads a journal's text. @throws Error(Fault::input): damage, naming origin, line and offset.
[[nodiscard]] JournalContent parse_journal(std::string_view text, const std::string& origin);

/// Reads a journal; changes nothing. A missing file gives no receipts.
[[nodiscard]] JournalContent read_journal(const std::filesystem::path& journal);

struct JournalOptions {
  std::string job{}, restart{};  // for the lease; by default from SLURM_JOB_ID, SLURM_RESTART_COUNT
  bool take_over = false;        // take the lease even from a holder that may be alive
  double stale_after_s = kLeaseStaleAfter_s;  // for a holder on another host
  FileOps* ops = nullptr;                     // tests
};

/// The one writer of a journal. Not for use from several threads at once.
class JournalWriter {
 public:
  /// Takes the lease and opens or makes the journal in an existing folder.
  /// @throws Error(Fault::input) when a live holder has it (says who), or the journal is damaged;
  ///         Error(Fault::io) when the folder can't be written
  [[nodiscard]] static JournalWriter open(const std::filesystem::path& journal,
                                          const JournalOptions& options = {});
  JournalWriter(JournalWriter&&) noexcept;
  JournalWriter& operator=(JournalWriter&&) noexcept;
  /// Leaves the lease in place, as a killed process would; close() releases it.
  ~JournalWriter();

  /// Every record so far, those of earlier writers first.
  [[nodiscard]] const std::vector<Receipt>& receipts() const;
  [[nodiscard]] std::int64_t epoch() const;
  [[nodiscard]] bool took_over() const;  // from a holder that had not ended in order

  /// Appends a record and returns once it is on disk; sets its seq and epoch.
  /// @throws Error(Fault::io) on any failure, disk full included, and when another writer took
  /// over. After that the writer is unusable: stop, and start the command again.
  Receipt append(Receipt receipt);

  /// The same for several records with one write and one sync: all of them are acknowledged, or
  /// (torn tail) a beginning of them is found by the next writer.
  std::vector<Receipt> append_all(std::vector<Receipt> receipts);

  /// To be called every few seconds. @throws Error(Fault::io) when another writer took over, or
  /// after a failed append().
  void heartbeat();

  /// Releases the lease. The writer can't be used afterwards.
  void close();

 private:
  struct State;
  explicit JournalWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace poros
