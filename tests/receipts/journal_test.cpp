// SPDX-License-Identifier: Apache-2.0
#include "receipts/journal.hpp"

#include <csignal>
#include <functional>
#include <optional>
#include <utility>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "temp_folder.hpp"

namespace poros {
namespace {

namespace fs = std::filesystem;
using testing::TempFolder;

Receipt record(const std::string& key) {
  Receipt receipt;
  receipt.kind = "attempt";
  receipt.key = key;
  receipt.fields = {{"method", "poros"}};
  return receipt;
}

std::string refusal(const fs::path& journal, const JournalOptions& options = {}) {
  try {
    (void)JournalWriter::open(journal, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Runs `body` in a child that then dies without releasing anything.
template <typename Body>
void in_killed_child(Body&& body) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    try {
      body();
    } catch (...) {
      ::_exit(1);
    }
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status)) << "the child failed before it was killed";
}

/// A lease of a process on another machine.
void write_foreign_lease(const fs::path& journal, std::int64_t epoch, double age_s) {
  LeaseHolder holder = this_process("77", "1");
  holder.host = "elsewhere";
  holder.boot_id = "another";
  holder.epoch = epoch;
  ASSERT_TRUE(make_lease(journal, holder));
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  const timespec past{now.tv_sec - static_cast<time_t>(age_s), 0};
  const timespec times[2] = {past, past};
  const fs::path path = journal.string() + ".lease." + std::to_string(epoch);
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
}

TEST(Journal, WhatWasAcknowledgedIsReadBackByteForByte) {
  const TempFolder folder;
  const fs::path path = folder / "results.jsonl";
  EXPECT_TRUE(read_journal(path).receipts.empty());
  std::string expected;
  auto writer = JournalWriter::open(path);
  EXPECT_EQ(writer.epoch(), 0);
  EXPECT_FALSE(writer.took_over());
  for (int i = 0; i < 5; ++i) {
    const Receipt acknowledged = writer.append(record("k" + std::to_string(i)));
    EXPECT_EQ(acknowledged.seq, i);
    expected += to_line(acknowledged);
    EXPECT_EQ(read_file(path), expected);
  }
  const JournalContent content = read_journal(path);
  EXPECT_EQ(content.receipts.size(), 5u);
  EXPECT_EQ(content.valid_bytes, expected.size());
  EXPECT_EQ(content.torn_bytes, 0u);
}

TEST(Journal, GoesOnInPlaceAfterAnOrderlyEnd) {
  const TempFolder folder;
  const fs::path path = folder / "results.jsonl";
  for (int run = 0; run < 3; ++run) {
    auto writer = JournalWriter::open(path);
    EXPECT_EQ(writer.epoch(), run);
    EXPECT_EQ(writer.receipts().size(), static_cast<std::size_t>(run));
    EXPECT_FALSE(writer.took_over());
    writer.append(record("k"));
    writer.close();
    EXPECT_EQ(view_lease(path).state, LeaseState::released);
  }
  std::size_t files = 0;
  for (const auto& entry : fs::directory_iterator(folder.path())) files += entry.exists() ? 1 : 0;
  EXPECT_EQ(files, 2u) << "journal and one lease, nothing left over";
  EXPECT_EQ(read_journal(path).last_epoch, 2);
}

TEST(Journal, ASecondWriterIsToldWhoHoldsIt) {
  const TempFolder folder;
  const fs::path path = folder / "results.jsonl";
  auto writer = JournalWriter::open(path, {.job = "4711", .restart = "2"});
  writer.append(record("k"));
  const std::string before = read_file(path);
  const std::string message = refusal(path);
  EXPECT_TRUE(contains(message, "pid " + std::to_string(::getpid()))) << message;
  EXPECT_TRUE(contains(message, "job 4711 restart 2")) << message;
  EXPECT_TRUE(contains(message, this_process("", "").host)) << message;
  EXPECT_EQ(read_file(path), before);
  writer.append(record("k"));
  writer.heartbeat();
}

TEST(Journal, ADeadHolderIsTakenOver) {
  const TempFolder folder;
  const fs::path path = folder / "results.jsonl";
  in_killed_child([&] {
    auto writer = JournalWriter::open(path);
    writer.append(record("first"));
  });
  EXPECT_EQ(view_lease(path).state, LeaseState::dead);
  auto writer = JournalWriter::open(path);
  EXPECT_TRUE(writer.took_over());
  EXPECT_EQ(writer.epoch(), 1);
  ASSERT_EQ(writer.receipts().size(), 1u);
  EXPECT_EQ(writer.receipts()[0].key, "first");
  writer.append(record("second"));
  EXPECT_EQ(read_journal(folder / "results.0.jsonl").receipts.size(), 1u);
  const auto content = read_journal(path);
  ASSERT_EQ(content.receipts.size(), 2u);
  EXPECT_EQ(content.receipts[0].epoch, 0);
  EXPECT_EQ(content.receipts[1].epoch, 1);
}

TEST(Journal, AHolderThatDiedBeforeItMadeTheFile) {
  const TempFolder folder;
  const fs::path path = folder / "results.jsonl";
  in_killed_child([&] { ASSERT_TRUE(make_lease(path, this_process("", ""))); });
  auto writer = JournalWriter::open(path);
  writer.append(record("k"));
  EXPECT_EQ(read_journal(path).receipts.size(), 1u);
}

TEST(Journal, AReusedPidIsNotTheHolder) {
  const TempFolder folder;
  const fs::path path = folder / "results.jsonl";
  LeaseHolder holder = this_process("", "");
  holder.pid_start -= 1;
  ASSERT_TRUE(make_lease(path, holder));
  EXPECT_EQ(view_lease(path).state, LeaseState::dead);
}

TEST(Journal, AnotherHostIsTakenOverOnlyWhenStaleOrByName) {
  const TempFolder folder;
  const fs::path path = folder / "results.jsonl";
  write_foreign_lease(path, 0, 30);
  EXPECT_TRUE(contains(refusal(path), "elsewhere"));
  EXPECT_TRUE(contains(refusal(path), "job 77 restart 1"));
  EXPECT_FALSE(fs::exists(path)) << "a refused driver creates nothing";
  { auto named = JournalWriter::open(path, {.take_over = true}); }
  const TempFolder other;
  const fs::path stale = other / "results.jsonl";
  write_foreign_lease(stale, 0, 90);
  auto writer = JournalWriter::open(stale);
  EXPECT_TRUE(writer.took_over());
}

TEST(Journal, AHalfWrittenLeaseHoldsForAFewSeconds) {
  const TempFolder folder;
  const fs::path path = folder / "results.jsonl";
  const fs::path lease = folder / "results.jsonl.lease.0";
  write_file_durably(lease, "{\"host\":");
  EXPECT_TRUE(contains(refusal(path), "just starting"));
  const timespec times[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, lease.c_str(), times, 0), 0);
  EXPECT_EQ(refusal(path), "");
}

TEST(Journal, OnlyOneOfManyWritersGetsADeadLease) {
  const TempFolder folder;
  const fs::path path = folder / "results.jsonl";
  in_killed_child([&] { JournalWriter::open(path).append(record("k")); });
  constexpr int kWriters = 8;
  int start[2];
  ASSERT_EQ(::pipe(start), 0);
  std::vector<pid_t> children;
  for (int i = 0; i < kWriters; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::close(start[1]);
      char byte = 0;
      if (::read(start[0], &byte, 1) != 0) ::_exit(3);  // end of file: all begin together
      try {
        auto writer = JournalWriter::open(path);
        writer.append(record("winner"));
        ::usleep(500'000);  // holds it until every other has tried
        ::_exit(0);
      } catch (const Error&) {
        ::_exit(1);
      }
    }
    children.push_back(child);
  }
  ::close(start[0]);
  ::close(start[1]);
  int winners = 0;
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    winners += WEXITSTATUS(status) == 0 ? 1 : 0;
  }
  EXPECT_EQ(winners, 1);
  EXPECT_EQ(read_journal(path).receipts.size(), 2u);
}

TEST(Journal, AnOldWriterAfterATakeoverStopsAndIsNotRead) {
  const TempFolder folder;
  const fs::path path = folder / "results.jsonl";
  auto old_writer = JournalWriter::open(path);
  old_writer.append(record("kept"));
  auto new_writer = JournalWriter::open(path, {.take_over = true});
  new_writer.append(record("new"));
  const std::string before = read_file(path);
  try {
    old_writer.append(record("late"));
    FAIL() << "acknowledged after it lost the journal";
  } catch (const Error& error) {
    EXPECT_TRUE(contains(error.what(), "took this campaign over: pid")) << error.what();
    EXPECT_EQ(error.exit_code(), kFailed);
  }
  EXPECT_THROW(old_writer.heartbeat(), Error);
  EXPECT_THROW(old_writer.append(record("again")), Error);
  EXPECT_NO_THROW(old_writer.close()) << "must not touch the new writer's lease";
  EXPECT_EQ(read_file(path), before);
  EXPECT_EQ(view_lease(path).holder->epoch, 1);
  EXPECT_EQ(view_lease(path).state, LeaseState::live);
  new_writer.append(record("more"));
  EXPECT_EQ(read_journal(path).receipts.size(), 3u);
}

/// Lets the old writer append at the worst moment: after the records were copied, before the
/// rename.
class RenameHook : public FileOps {
 public:
  std::function<void()> before_rename;
  int rename(const char* from, const char* to) override {
    before_rename();
    return FileOps::rename(from, to);
  }
};

TEST(Journal, WhatAnOldWriterAcknowledgedDuringTheTakeoverIsKept) {
  const TempFolder folder;
  const fs::path path = folder / "results.jsonl";
  auto old_writer = JournalWriter::open(path);
  old_writer.append(record("a"));
  RenameHook hook;
  hook.before_rename = [&] { old_writer.append(record("b")); };
  auto new_writer = JournalWriter::open(path, {.take_over = true, .ops = &hook});
  ASSERT_EQ(new_writer.receipts().size(), 2u);
  EXPECT_EQ(new_writer.receipts()[1].key, "b");
  new_writer.append(record("c"));
  const auto content = read_journal(path);
  ASSERT_EQ(content.receipts.size(), 3u);
  EXPECT_EQ(content.receipts[1].key, "b");
}

/// A write that is under way while the journal changes hands lands in the old file only.
class WriteHook : public FileOps {
 public:
  std::function<void()> before_write;
  ssize_t write(int fd, const void* from, std::size_t bytes) override {
    if (const auto once = std::exchange(before_write, nullptr)) once();
    return FileOps::write(fd, from, bytes);
  }
};

TEST(Journal, AWriteUnderWayAtATakeoverIsNotAcknowledged) {
  const TempFolder folder;
  const fs::path path = folder / "results.jsonl";
  WriteHook hook;
  auto old_writer = JournalWriter::open(path, {.ops = &hook});
  old_writer.append(record("a"));
  std::optional<JournalWriter> new_writer;
  hook.before_write = [&] { new_writer.emplace(JournalWriter::open(path, {.take_over = true})); };
  EXPECT_THROW(old_writer.append(record("late")), Error);
  EXPECT_EQ(read_journal(folder / "results.0.jsonl").receipts.size(), 2u);
  EXPECT_EQ(read_journal(path).receipts.size(), 1u);
}

TEST(Journal, AMissingEndOfAClosedJournalIsRefused) {
  const TempFolder folder;
  const fs::path path = folder / "results.jsonl";
  std::string first_line;
  {
    auto writer = JournalWriter::open(path);
    first_line = to_line(writer.append(record("a")));
    writer.append(record("b"));
    writer.close();
  }
  write_file_durably(path, first_line);
  EXPECT_TRUE(contains(refusal(path), "2 records were acknowledged")) << refusal(path);
}

TEST(Journal, AnUnwritableFolderIsReported) {
  const TempFolder folder;
  EXPECT_NE(refusal(folder / "missing/results.jsonl"), "");
}

}  // namespace
}  // namespace poros
