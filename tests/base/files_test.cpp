// SPDX-License-Identifier: Apache-2.0
#include "base/files.hpp"

#include <fstream>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/sha256.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

class Files : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "poros-files-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }
  [[nodiscard]] std::size_t entries() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  fs::path folder_;
};

TEST_F(Files, DurableWriteReplacesAsAWhole) {
  const fs::path path = folder_ / "a.json";
  write_file_durably(path, "old");
  write_file_durably(path, "new content");
  EXPECT_EQ(read_file(path), "new content");
  EXPECT_EQ(sha256_file(path), sha256_hex("new content"));
  EXPECT_EQ(entries(), 1U);  // no temporary file stays
}

TEST_F(Files, FailedWriteLeavesTheOldFileAndNoTemporary) {
  const fs::path path = folder_ / "a.json";
  fs::create_directory(path);  // rename onto a folder fails
  EXPECT_THROW(write_file_durably(path, "x"), Error);
  EXPECT_EQ(entries(), 1U);
  EXPECT_THROW(write_file_durably(folder_ / "missing" / "a", "x"), Error);
}

TEST_F(Files, FullDiskIsAnError) {
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(full);
  EXPECT_THROW(write_all(full.get(), "x", 1, "/dev/full"), Error);
}

TEST_F(Files, ReadingRefusesFoldersPipesAndOversize) {
  EXPECT_THROW((void)read_file(folder_), Error);
  EXPECT_THROW((void)read_file(folder_ / "missing"), Error);
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW((void)read_file(pipe), Error);  // and does not hang
  std::ofstream(folder_ / "big") << "0123456789";
  EXPECT_THROW((void)read_file(folder_ / "big", 9), Error);
  EXPECT_EQ(read_file(folder_ / "big", 10), "0123456789");
}

TEST_F(Files, TruncatedFileIsNamed) {
  std::ofstream(folder_ / "short") << "0123";
  const UniqueFd fd = open_for_reading(folder_ / "short");
  char into[8];
  try {
    pread_exact(fd.get(), into, 8, 0, folder_ / "short");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("truncated"), std::string::npos);
  }
}

TEST_F(Files, NamesFromOutsideStayInTheirFolder) {
  EXPECT_EQ(child_path("/out", "a.json"), fs::path("/out/a.json"));
  for (const std::string& bad :
       {std::string(""), std::string("."), std::string(".."), std::string("../x"),
        std::string("/abs"), std::string("a/b"), std::string("a\nb"), std::string("a\0b", 3),
        std::string(300, 'a')}) {
    EXPECT_THROW((void)child_path("/out", bad), Error) << bad;
  }
}

TEST_F(Files, Ids) {
  for (const char* good : {"a", "A100-80GB", "x.y_z-1", "0"})
    EXPECT_TRUE(is_valid_id(good)) << good;
  for (const char* bad : {"", ".a", "-rf", "a/b", "a b", "\xc3\xa4", "a\n"}) {
    EXPECT_FALSE(is_valid_id(bad)) << bad;
  }
  EXPECT_TRUE(is_valid_id(std::string(64, 'a')));
  EXPECT_FALSE(is_valid_id(std::string(65, 'a')));
}

}  // namespace
}  // namespace poros
