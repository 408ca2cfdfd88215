// SPDX-License-Identifier: Apache-2.0
#include "model/token_file.hpp"

#include <functional>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "tests/model/goldens.hpp"

namespace poros {
namespace {

TokenFile sample() {
  TokenFile t;
  t.seq_len = 4;
  t.rows = 2;
  t.vocab = 300;
  t.note = R"({"dataset":"x"})";
  t.ids = {1, 299, 3, 0, 70000 % 300, 5, 6, 7};
  t.flags = {2, 1, 2, 4, 2, 1, 1, 1};
  return t;
}

TEST(TokenFiles, WrittenIsReadBack) {
  const test::TemporaryFolder folder;
  const std::string bytes = token_file_bytes(sample());
  // The layout, counted by hand: 32 bytes of header, 15 of note, zeros to 64, 8 ids, 8 flags.
  EXPECT_EQ(bytes.size(), 64U + 32 + 8);
  EXPECT_EQ(bytes.substr(0, 8), "POROSTOK");
  EXPECT_EQ(bytes.substr(64, 8), std::string("\x01\0\0\0\x2b\x01\0\0", 8));
  write_file_durably(folder.path() / "t", bytes);
  const TokenFile read = read_token_file(folder.path() / "t");
  EXPECT_EQ(read.ids, sample().ids);
  EXPECT_EQ(read.flags, sample().flags);
  EXPECT_EQ(read.note, sample().note);
  EXPECT_EQ(read.seq_len, 4);
  EXPECT_EQ(read.rows, 2);
  EXPECT_EQ(read.vocab, 300);
  EXPECT_EQ(read.sha256, sha256_hex(bytes));
}

TEST(TokenFiles, BadFilesAreRefusedWithTheReason) {
  const test::TemporaryFolder folder;
  const auto refused = [&](const char* reason, const std::function<void(std::string&)>& spoil) {
    std::string bytes = token_file_bytes(sample());
    spoil(bytes);
    write_file_durably(folder.path() / "t", bytes);
    try {
      (void)read_token_file(folder.path() / "t");
      ADD_FAILURE() << "accepted; expected: " << reason;
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::input);
      EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
    }
  };
  refused("not a token file", [](std::string& b) { b[0] = 'X'; });
  refused("not a token file", [](std::string& b) { b.resize(20); });
  refused("version", [](std::string& b) { b[8] = 2; });
  refused("above 0", [](std::string& b) { b[12] = 0; });
  refused("need", [](std::string& b) { b.pop_back(); });
  refused("need", [](std::string& b) { b += 'x'; });
  refused("far more", [](std::string& b) { b.replace(16, 8, std::string(8, '\x7f')); });
  refused("need", [](std::string& b) { b[31] = '\x7f'; });
  refused("not valid JSON", [](std::string& b) { b[32] = 'x'; });
  refused("row 0, token 1: id 300 is not below", [](std::string& b) { b[68] = 44; });
  refused("unknown flags", [](std::string& b) { b[96] = 10; });
  refused("first token must start", [](std::string& b) { b[96] = 0; });
  refused("can't be supervised", [](std::string& b) { b[96] = 3; });
  refused("padding can't be supervised", [](std::string& b) { b[99] = 5; });
}

TEST(TokenFiles, InconsistentContentIsNotWritten) {
  TokenFile t = sample();
  t.ids.pop_back();
  EXPECT_THROW((void)token_file_bytes(t), Error);
  t = sample();
  t.ids[2] = 300;
  EXPECT_THROW((void)token_file_bytes(t), Error);
}

}  // namespace
}  // namespace poros
