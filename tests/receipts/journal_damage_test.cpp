// SPDX-License-Identifier: Apache-2.0
// Damage to a journal, at every byte. The oracle is the list of acknowledged records: whatever is
// done to the end of the last, unacknowledged record costs at most that record; any other damage is
// refused with line and offset.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "receipts/journal.hpp"
#include "temp_folder.hpp"

namespace poros {
namespace {

namespace fs = std::filesystem;
using testing::TempFolder;

Receipt record(int number) {
  Receipt receipt;
  receipt.kind = "attempt";
  receipt.key = "k" + std::to_string(number);
  receipt.fields = {{"text", "}{ \" \\ \n brackets and quotes"}, {"n", number}};
  return receipt;
}

struct Written {
  std::vector<std::string> lines;
  std::string text;
};

Written three_records() {
  Written written;
  for (int i = 0; i < 3; ++i) {
    Receipt receipt = record(i);
    receipt.seq = i;
    written.lines.push_back(to_line(receipt));
    written.text += written.lines.back();
  }
  return written;
}

/// What a new writer makes of a text: the number of records kept, or the refusal.
struct Outcome {
  std::optional<std::size_t> kept;
  std::string message;
};

Outcome open_with(const std::string& text) {
  const TempFolder folder;
  const fs::path path = folder / "results.jsonl";
  write_file_durably(path, text);
  try {
    auto writer = JournalWriter::open(path);
    const std::size_t kept = writer.receipts().size();
    writer.append(record(99));  // goes on, and the result is whole
    writer.close();
    const JournalContent after = read_journal(path);
    EXPECT_EQ(after.torn_bytes, 0u);
    EXPECT_FALSE(after.last_line_unended);
    EXPECT_EQ(after.receipts.size(), kept + 1);
    return {kept, ""};
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::input);
    EXPECT_EQ(read_file(path), text) << "a refused journal must stay as it is";
    return {std::nullopt, error.what()};
  }
}

/// The same by reading alone, without files.
Outcome read_text(const std::string& text) {
  try {
    return {parse_journal(text, "results.jsonl").receipts.size(), ""};
  } catch (const Error& error) {
    return {std::nullopt, error.what()};
  }
}

std::size_t whole_records(const Written& written, std::size_t bytes) {
  std::size_t count = 0, end = 0;
  for (const auto& line : written.lines) {
    end += line.size();
    if (bytes + 1 >= end) ++count;  // a record that lacks only its '\n' is whole
  }
  return count;
}

TEST(JournalDamage, CutAtEveryByte) {
  const Written written = three_records();
  for (std::size_t k = 0; k <= written.text.size(); ++k) {
    const Outcome outcome = open_with(written.text.substr(0, k));
    ASSERT_EQ(outcome.kept, whole_records(written, k)) << "cut at " << k << ": " << outcome.message;
  }
}

TEST(JournalDamage, CutAndPaddedWithZerosAtEveryByte) {
  const Written written = three_records();
  for (const std::size_t block : {512u, 4096u}) {
    for (std::size_t k = 0; k < written.text.size(); ++k) {
      std::string text = written.text.substr(0, k);
      text.resize((k / block + 1) * block, '\0');
      const Outcome outcome = open_with(text);
      ASSERT_EQ(outcome.kept, whole_records(written, k)) << k << ": " << outcome.message;
    }
  }
}

TEST(JournalDamage, GarbageWithoutNewlineAfterEveryByteOfTheLastRecord) {
  const Written written = three_records();
  const std::size_t last = written.text.size() - written.lines[2].size();
  for (std::size_t k = last; k < written.text.size(); ++k) {
    const Outcome outcome = open_with(written.text.substr(0, k) + "\x01\xff{garbage\"}");
    ASSERT_TRUE(outcome.kept) << k << ": " << outcome.message;
    ASSERT_GE(*outcome.kept, 2u);
  }
}

// A flipped bit is either refused with its place, or (in the last '\n') costs nothing.
TEST(JournalDamage, FlippedBitAtEveryByte) {
  const Written written = three_records();
  for (std::size_t k = 0; k < written.text.size(); ++k) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string text = written.text;
      text[k] = static_cast<char>(text[k] ^ (1 << bit));
      const Outcome outcome = bit == 0 ? open_with(text) : read_text(text);
      if (k + 1 == text.size()) {
        ASSERT_EQ(outcome.kept, 3u) << outcome.message;
        continue;
      }
      ASSERT_FALSE(outcome.kept) << "byte " << k << " bit " << bit << " was not seen";
      std::size_t line = 0, start = 0;
      while (start + written.lines[line].size() <= k) start += written.lines[line++].size();
      const std::string place =
          "line " + std::to_string(line + 1) + " (byte " + std::to_string(start) + ")";
      ASSERT_NE(outcome.message.find(place), std::string::npos) << outcome.message;
    }
  }
}

TEST(JournalDamage, LinesMissingRepeatedSwappedOrGluedAreRefused) {
  const auto [lines, text] = three_records();
  const std::string unended = lines[1].substr(0, lines[1].size() - 1);
  const std::pair<std::string, std::string> cases[] = {
      {lines[0] + lines[2], "line 2"},                        // missing
      {lines[1] + lines[2], "line 1"},                        // first missing
      {lines[0] + lines[1] + lines[1] + lines[2], "line 3"},  // repeated
      {lines[0] + lines[2] + lines[1], "line 2"},             // swapped
      {lines[0] + unended + lines[2], "line 2"},              // glued: }{
      {lines[0] + "\n" + lines[1], "line 2"},                 // blank line
      {lines[0] + "{\"v\":1}\n" + lines[1], "line 2"},        // other JSON
      {lines[0] + lines[1].substr(0, 20) + "\n" + lines[2], "line 2"},
      {lines[0] + lines[2].substr(0, lines[2].size() - 1), "line 2"},  // whole, but out of order
  };
  for (const auto& [damaged, place] : cases) {
    const Outcome outcome = open_with(damaged);
    EXPECT_FALSE(outcome.kept) << damaged;
    EXPECT_NE(outcome.message.find(place), std::string::npos) << outcome.message;
  }
}

TEST(JournalDamage, ALineOfAnOlderEpochIsRefused) {
  Receipt first = record(0), second = record(1);
  first.epoch = 3;
  second.seq = 1;
  second.epoch = 2;
  const Outcome outcome = open_with(to_line(first) + to_line(second));
  EXPECT_NE(outcome.message.find("old writer"), std::string::npos) << outcome.message;
}

TEST(JournalDamage, AnAllZeroFileIsATornTail) {
  EXPECT_EQ(open_with(std::string(4096, '\0')).kept, 0u);
}

}  // namespace
}  // namespace poros
