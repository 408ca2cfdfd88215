// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include <fmt/format.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "receipts/journal.hpp"

namespace poros {
namespace {

constexpr std::uint64_t kMaxJournalBytes = std::uint64_t{8} << 30;

/// Length of the first complete JSON object at the beginning of the text, 0 when there is none.
std::size_t object_length(std::string_view text) {
  if (text.empty() || text[0] != '{') return 0;
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{') {
      ++depth;
    } else if (c == '}' && --depth == 0) {
      return i + 1;
    }
  }
  return 0;
}

void check_order(const Receipt& receipt, const JournalContent& so_far, const std::string& place) {
  const auto expected = static_cast<std::int64_t>(so_far.receipts.size());
  if (receipt.seq != expected) {
    fail(Fault::input,
         "{}: record has seq {} where {} is due: a line is missing, repeated or moved", place,
         receipt.seq, expected);
  }
  if (receipt.epoch < so_far.last_epoch) {
    fail(Fault::input, "{}: epoch {} after epoch {}: an old writer's line was put in", place,
         receipt.epoch, so_far.last_epoch);
  }
}

}  // namespace

JournalContent parse_journal(std::string_view text, const std::string& origin) {
  JournalContent content;
  Sha256 hash;
  const auto accept = [&](std::string_view line, Receipt receipt, const std::string& place) {
    check_order(receipt, content, place);
    content.last_epoch = receipt.epoch;
    content.receipts.push_back(std::move(receipt));
    hash.update(line);
    hash.update("\n");
  };
  std::size_t offset = 0;
  while (offset < text.size()) {
    const std::string place =
        fmt::format("{}: line {} (byte {})", origin, content.receipts.size() + 1, offset);
    const std::size_t end = text.find('\n', offset);
    if (end != std::string_view::npos) {
      const auto line = text.substr(offset, end - offset);
      accept(line, receipt_from_line(line, place), place);
      offset = end + 1;
      content.valid_bytes = offset;
      continue;
    }
    // The tail: what an interrupted write left. A record in it that is whole but for its '\n' may
    // have been acknowledged (a damaged '\n'), so it stays.
    const auto line = text.substr(offset, object_length(text.substr(offset)));
    std::optional<Receipt> whole;
    try {
      if (!line.empty()) whole = receipt_from_line(line, place);
    } catch (const Error&) {
      // Torn: dropped by the next writer.
    }
    if (whole) {
      accept(line, std::move(*whole), place);
      content.last_line_unended = true;
      content.valid_bytes = offset + line.size();
    }
    content.torn_bytes = text.size() - content.valid_bytes;
    break;
  }
  content.sha256 = hash.hex();
  return content;
}

JournalContent read_journal(const std::filesystem::path& journal) {
  std::error_code error;
  if (!std::filesystem::exists(journal, error)) {
    if (error) fail(Fault::io, "{}: {}", journal.string(), error.message());
    return parse_journal("", journal.string());
  }
  return parse_journal(read_file(journal, kMaxJournalBytes), journal.string());
}

}  // namespace poros
