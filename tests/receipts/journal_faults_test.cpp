// SPDX-License-Identifier: Apache-2.0
// System calls that fail: for each kind of fault and each n, the n-th call fails, n rising until no
// fault fires. Afterwards every acknowledged record must be there and the journal must go on.
#include <cerrno>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "receipts/journal.hpp"
#include "temp_folder.hpp"

namespace poros {
namespace {

namespace fs = std::filesystem;
using testing::TempFolder;

enum class Kind { write_enospc, write_short, write_eintr, datasync, sync, rename, torn_write };

/// Fails the n-th call of one kind. torn_write: half of the record is written and the truncation
/// that should take it back fails too.
class FaultyOps : public FileOps {
 public:
  FaultyOps(Kind kind, int n) : kind_(kind), n_(n) {}
  bool fired = false;

  ssize_t write(int fd, const void* from, std::size_t bytes) override {
    if (fires(Kind::write_enospc)) return error(ENOSPC);
    if (fires(Kind::write_eintr)) return error(EINTR);
    if (fires(Kind::write_short) || fires(Kind::torn_write)) {
      return FileOps::write(fd, from, bytes / 2);
    }
    return FileOps::write(fd, from, bytes);
  }
  int fdatasync(int fd) override {
    return fires(Kind::datasync) ? error(EIO) : FileOps::fdatasync(fd);
  }
  int fsync(int fd) override { return fires(Kind::sync) ? error(EIO) : FileOps::fsync(fd); }
  int rename(const char* from, const char* to) override {
    return fires(Kind::rename) ? error(EIO) : FileOps::rename(from, to);
  }
  int ftruncate(int fd, off_t bytes) override {
    return kind_ == Kind::torn_write ? error(EIO) : FileOps::ftruncate(fd, bytes);
  }

 private:
  bool fires(Kind kind) {
    if (kind != kind_ || --n_ != 0) return false;
    fired = true;
    return true;
  }
  static int error(int number) {
    errno = number;
    return -1;
  }
  Kind kind_;
  int n_;
};

Receipt record(int number) {
  Receipt receipt;
  receipt.kind = "attempt";
  receipt.key = "k" + std::to_string(number);
  return receipt;
}

class JournalFaults : public ::testing::TestWithParam<Kind> {};

TEST_P(JournalFaults, NothingAcknowledgedIsLost) {
  for (int n = 1;; ++n) {
    ASSERT_LT(n, 50);
    const TempFolder folder;
    const fs::path path = folder / "results.jsonl";
    std::vector<std::string> acknowledged;
    {
      auto writer = JournalWriter::open(path);
      acknowledged.push_back(to_line(writer.append(record(0))));
      // Dropped without close: the next open is a takeover (here by name, the process lives).
    }
    FaultyOps faulty(GetParam(), n);
    bool failed = false;
    try {
      auto writer = JournalWriter::open(path, {.take_over = true, .ops = &faulty});
      for (int i = 1; i < 6; ++i) acknowledged.push_back(to_line(writer.append(record(i))));
    } catch (const Error& error) {
      failed = true;
      EXPECT_EQ(error.fault(), Fault::io) << error.what();
      EXPECT_NE(std::string(error.what()).find(folder.path().string()), std::string::npos)
          << error.what();
    }
    EXPECT_EQ(failed, faulty.fired && GetParam() != Kind::write_eintr);

    auto next = JournalWriter::open(path, {.take_over = true});
    ASSERT_GE(next.receipts().size(), acknowledged.size()) << "an acknowledged record is lost";
    ASSERT_LE(next.receipts().size(),
              acknowledged.size() + 1);  // one may be whole, not acknowledged
    for (std::size_t i = 0; i < acknowledged.size(); ++i) {
      EXPECT_EQ(to_line(next.receipts()[i]), acknowledged[i]);
    }
    next.append(record(7));
    EXPECT_EQ(read_journal(path).receipts.size(), next.receipts().size());
    if (!faulty.fired) {
      EXPECT_GT(n, 1) << "the fault never fired: the test tests nothing";
      break;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, JournalFaults,
                         ::testing::Values(Kind::write_enospc, Kind::write_short, Kind::write_eintr,
                                           Kind::datasync, Kind::sync, Kind::rename,
                                           Kind::torn_write));

TEST(JournalFaults, AFailedWriterWritesNothingMore) {
  const TempFolder folder;
  const fs::path path = folder / "results.jsonl";
  FaultyOps faulty(Kind::datasync, 2);
  auto writer = JournalWriter::open(path, {.ops = &faulty});
  writer.append(record(0));
  EXPECT_THROW(writer.append(record(1)), Error);
  const std::string after = read_file(path);
  EXPECT_THROW(writer.append(record(2)), Error);
  EXPECT_EQ(read_file(path), after);
}

TEST(JournalFaults, AShortWriteIsTakenBackAtOnce) {
  const TempFolder folder;
  const fs::path path = folder / "results.jsonl";
  FaultyOps faulty(Kind::write_short, 2);
  auto writer = JournalWriter::open(path, {.ops = &faulty});
  const std::string first = to_line(writer.append(record(0)));
  EXPECT_THROW(writer.append(record(1)), Error);
  EXPECT_EQ(read_file(path), first);
}

TEST(JournalFaults, AFullDeviceIsReported) {
  const TempFolder folder;
  const fs::path path = folder / "results.jsonl";
  FaultyOps faulty(Kind::write_enospc, 1);
  auto writer = JournalWriter::open(path, {.ops = &faulty});
  try {
    writer.append(record(0));
    FAIL() << "acknowledged on a full disk";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("No space left"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace poros
