// SPDX-License-Identifier: Apache-2.0
#include "receipts/journal.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <optional>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/text.hpp"

namespace poros {
namespace fs = std::filesystem;

ssize_t FileOps::write(int fd, const void* from, std::size_t bytes) {
  return ::write(fd, from, bytes);
}
int FileOps::fdatasync(int fd) {
  return ::fdatasync(fd);
}
int FileOps::fsync(int fd) {
  return ::fsync(fd);
}
int FileOps::ftruncate(int fd, off_t bytes) {
  return ::ftruncate(fd, bytes);
}
int FileOps::rename(const char* from, const char* to) {
  return ::rename(from, to);
}

namespace {

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

struct FileId {
  dev_t device = 0;
  ino_t inode = 0;
  off_t bytes = 0;
  bool operator==(const FileId&) const = default;
};

std::optional<FileId> identify(const fs::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) return FileId{info.st_dev, info.st_ino, info.st_size};
  if (errno == ENOENT) return std::nullopt;
  fail_errno(Fault::io, path.string());
}

/// The text of an open file as it is now.
std::string text_of(int fd, const fs::path& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) fail_errno(Fault::io, path.string());
  std::string text(static_cast<std::size_t>(info.st_size), '\0');
  pread_exact(fd, text.data(), text.size(), 0, path);
  return text;
}

void sync_folder_with(FileOps& ops, const fs::path& folder) {
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || ops.fsync(fd.get()) != 0) fail_errno(Fault::io, folder.string() + ": sync");
}

/// One write for the whole text. @returns false on a short write; throws on an error.
bool write_whole(FileOps& ops, int fd, std::string_view text, const fs::path& path) {
  ssize_t put = -1;
  do {
    put = ops.write(fd, text.data(), text.size());
  } while (put < 0 && errno == EINTR);
  if (put < 0) fail_errno(Fault::io, path.string() + ": write");
  return static_cast<std::size_t>(put) == text.size();
}

std::string accepted_text(std::string_view text, const JournalContent& content) {
  std::string accepted(text.substr(0, content.valid_bytes));
  if (content.last_line_unended) accepted += '\n';
  return accepted;
}

/// results.<epoch>.jsonl: where the journal of an epoch stays after a takeover.
fs::path kept_path(const fs::path& journal, std::int64_t epoch, int number) {
  const std::string suffix = number == 0 ? "" : fmt::format(".{}", number);
  return folder_of(journal) / fmt::format("{}.{}{}{}", journal.stem().string(), epoch, suffix,
                                          journal.extension().string());
}

/// Gives the old journal a second name before its own is taken from it.
void keep_old(const fs::path& journal, std::int64_t epoch) {
  for (int number = 0; number < 1000; ++number) {
    const fs::path kept = kept_path(journal, epoch, number);
    if (::link(journal.c_str(), kept.c_str()) == 0) return;
    if (errno == EEXIST) {
      std::error_code error;
      if (fs::equivalent(journal, kept, error)) return;  // an interrupted takeover made it
      continue;
    }
    // No hard links here (some network and FUSE file systems): a copy does.
    write_file_durably(kept, read_file(journal, ~std::uint64_t{0}));
    return;
  }
  fail(Fault::io, "{}: a thousand old journals of epoch {} lie beside it", journal.string(), epoch);
}

}  // namespace

struct JournalWriter::State {
  fs::path path;
  FileOps* ops = nullptr;
  FileOps plain_ops;
  LeaseHolder lease;
  UniqueFd fd;
  FileId id;  // `bytes`: up to the last acknowledged record
  std::vector<Receipt> receipts;
  bool took_over = false;
  std::string broken;  // why nothing more may be written

  void create();
  void open_in_place(JournalContent content);
  void copy_and_replace(std::int64_t old_epoch);
  void check_usable() const;
  void check_still_ours();
  [[noreturn]] void lost();
};

void JournalWriter::State::create() {
  fd.reset(::open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_APPEND | O_CLOEXEC, 0644));
  if (!fd) fail_errno(Fault::io, path.string() + ": create");
  if (ops->fsync(fd.get()) != 0) fail_errno(Fault::io, path.string() + ": sync");
  sync_folder_with(*ops, folder_of(path));
  id = identify(path).value();
}

void JournalWriter::State::open_in_place(JournalContent content) {
  fd.reset(::open(path.c_str(), O_RDWR | O_APPEND | O_CLOEXEC));
  if (!fd) fail_errno(Fault::io, path.string() + ": open for writing");
  receipts = std::move(content.receipts);
  id = identify(path).value();
}

/// Old writers keep their file; ours is a new one with the accepted records. An old writer looks
/// before and after each write whether the journal is still its file (check_still_ours), so that
/// whatever it acknowledged was in the old file before our rename: the second look at that file,
/// after the rename, finds all of it.
void JournalWriter::State::copy_and_replace(std::int64_t old_epoch) {
  const UniqueFd old = open_for_reading(path);
  const std::string first = text_of(old.get(), path);
  const JournalContent content = parse_journal(first, path.string());
  std::string copied = accepted_text(first, content);

  const fs::path next =
      folder_of(path) / fmt::format(".{}.epoch-{}", path.filename().string(), lease.epoch);
  ::unlink(next.c_str());
  fd.reset(::open(next.c_str(), O_CREAT | O_EXCL | O_RDWR | O_APPEND | O_CLOEXEC, 0644));
  if (!fd) fail_errno(Fault::io, next.string() + ": create");
  try {
    if (!copied.empty() && !write_whole(*ops, fd.get(), copied, next)) {
      fail(Fault::io, "{}: short write: the disk is full or a limit was met", next.string());
    }
    if (ops->fsync(fd.get()) != 0) fail_errno(Fault::io, next.string() + ": sync");
    keep_old(path, old_epoch);
    if (ops->rename(next.c_str(), path.c_str()) != 0) {
      fail_errno(Fault::io, path.string() + ": rename");
    }
  } catch (...) {
    ::unlink(next.c_str());
    throw;
  }
  sync_folder_with(*ops, folder_of(path));

  const std::string second = text_of(old.get(), path);
  const JournalContent later = parse_journal(second, path.string());
  receipts = std::move(later.receipts);
  const std::string all = accepted_text(second, later);
  if (all.size() > copied.size()) {
    const std::string_view rest = std::string_view(all).substr(copied.size());
    if (!write_whole(*ops, fd.get(), rest, path)) {
      fail(Fault::io, "{}: short write: the disk is full or a limit was met", path.string());
    }
    if (ops->fdatasync(fd.get()) != 0) fail_errno(Fault::io, path.string() + ": sync");
  }
  id = identify(path).value();
}

void JournalWriter::State::lost() {
  broken = "another driver took over";
  const LeaseView view = view_lease(path);
  fail(Fault::io, "{}: another driver took this campaign over{}; this one stops", path.string(),
       view.holder ? ": " + describe(*view.holder) : "");
}

void JournalWriter::State::check_usable() const {
  if (!broken.empty()) {
    fail(Fault::io, "{}: no more records after a failure: {}", path.string(), broken);
  }
}

void JournalWriter::State::check_still_ours() {
  const auto now = identify(path);
  if (!now || now->device != id.device || now->inode != id.inode) lost();
}

JournalWriter::JournalWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
JournalWriter::JournalWriter(JournalWriter&&) noexcept = default;
JournalWriter& JournalWriter::operator=(JournalWriter&&) noexcept = default;
JournalWriter::~JournalWriter() = default;

JournalWriter JournalWriter::open(const fs::path& journal, const JournalOptions& options) {
  auto state = std::make_unique<State>();
  state->path = journal;
  state->ops = options.ops != nullptr ? options.ops : &state->plain_ops;

  const LeaseView view = view_lease(journal, options.stale_after_s);
  if (view.state == LeaseState::live && !options.take_over) {
    fail(
        Fault::input,
        "{}: another driver holds this campaign: {}. Wait for it or stop it; if it is certain that "
        "it is gone, take the campaign over",
        journal.string(), view.holder ? describe(*view.holder) : "a process that is just starting");
  }
  const auto before = identify(journal);
  JournalContent content = read_journal(journal);
  const auto count = static_cast<std::int64_t>(content.receipts.size());
  if (view.state == LeaseState::released && view.holder->receipts.value_or(0) > count) {
    fail(Fault::input,
         "{}: {} records were acknowledged when its last writer ended, {} are there: the file was "
         "cut. Restore it, or remove {}.lease.{} to go on with what is left",
         journal.string(), *view.holder->receipts, count, journal.filename().string(), view.epoch);
  }

  state->lease = this_process(
      options.job.empty() ? environment_variable("SLURM_JOB_ID") : options.job,
      options.restart.empty() ? environment_variable("SLURM_RESTART_COUNT") : options.restart);
  state->lease.epoch = std::max(view.epoch, content.last_epoch) + 1;
  // The journal was read after the lease was looked at. Had another taken the lease in between and
  // written, last_epoch would be his and the next epoch free: look again before making it.
  if (view_lease(journal, options.stale_after_s).epoch != view.epoch ||
      !make_lease(journal, state->lease)) {
    const LeaseView winner = view_lease(journal, options.stale_after_s);
    fail(Fault::input, "{}: another driver took this campaign at the same moment: {}",
         journal.string(),
         winner.holder ? describe(*winner.holder) : "a process that is just starting");
  }
  try {
    state->took_over = view.state == LeaseState::dead || view.state == LeaseState::stale ||
                       view.state == LeaseState::live;
    const bool exists = identify(journal).has_value();
    const bool torn = content.torn_bytes > 0 || content.last_line_unended;
    if (!exists) {
      state->create();
    } else if (state->took_over || torn || identify(journal) != before) {
      state->copy_and_replace(std::max(view.epoch, content.last_epoch));
    } else {
      state->open_in_place(std::move(content));
    }
  } catch (...) {
    remove_lease(journal, state->lease.epoch);
    throw;
  }
  remove_older_leases(journal, state->lease.epoch);
  return JournalWriter(std::move(state));
}

const std::vector<Receipt>& JournalWriter::receipts() const {
  return state_->receipts;
}
std::int64_t JournalWriter::epoch() const {
  return state_->lease.epoch;
}
bool JournalWriter::took_over() const {
  return state_->took_over;
}

Receipt JournalWriter::append(Receipt receipt) {
  std::vector<Receipt> one;
  one.push_back(std::move(receipt));
  return append_all(std::move(one)).front();
}

std::vector<Receipt> JournalWriter::append_all(std::vector<Receipt> receipts) {
  State& s = *state_;
  s.check_usable();
  std::string text;
  for (std::size_t i = 0; i < receipts.size(); ++i) {
    receipts[i].seq = static_cast<std::int64_t>(s.receipts.size() + i);
    receipts[i].epoch = s.lease.epoch;
    text += to_line(receipts[i]);
  }
  s.check_still_ours();
  try {
    if (!write_whole(*s.ops, s.fd.get(), text, s.path)) {
      fail(Fault::io, "{}: short write: the disk is full or a limit was met", s.path.string());
    }
  } catch (const Error& error) {
    s.broken = error.what();
    // Takes back what a short write left, so that the file ends with a whole record. Where that
    // fails too, the next writer repairs the tail.
    if (s.ops->ftruncate(s.fd.get(), s.id.bytes) != 0) s.broken += "; the tail is torn";
    throw Error(Fault::io, s.broken);
  }
  if (s.ops->fdatasync(s.fd.get()) != 0) {
    // Never tried again: after a failed sync nobody knows what reached the disk.
    s.broken = "sync failed";
    fail_errno(Fault::io, s.path.string() + ": sync");
  }
  s.check_still_ours();
  s.id.bytes += static_cast<off_t>(text.size());
  s.receipts.insert(s.receipts.end(), receipts.begin(), receipts.end());
  return receipts;
}

void JournalWriter::heartbeat() {
  State& s = *state_;
  s.check_usable();
  if (!touch_lease(s.path, s.lease.epoch)) s.lost();
}

void JournalWriter::close() {
  State& s = *state_;
  if (s.broken.empty()) {
    s.check_still_ours();
    s.fd.reset();
    s.broken = "closed";
    release_lease(s.path, s.lease, static_cast<std::int64_t>(s.receipts.size()));
  }
}

}  // namespace poros
