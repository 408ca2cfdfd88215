// SPDX-License-Identifier: Apache-2.0
// inputs/<sha256>.tokens: what every arm of a group trains on. Little-endian:
//   bytes 0-7    "POROSTOK"
//   bytes 8-11   u32 version (1)
//   bytes 12-15  u32 seq_len
//   bytes 16-23  u64 rows
//   bytes 24-27  u32 vocab_size (every id is below it)
//   bytes 28-31  u32 bytes of the JSON note that follows
//   note         JSON: dataset, tokenizer sha256, seed, packing (for people; not read by arms)
//   padding      zeros to a multiple of 64
//   ids          u32 [rows, seq_len]
//   flags        u8  [rows, seq_len]: bit 0: this token is a supervised target (predicted from the
//                one before it in its document), bit 1: first token of a document (positions
//                restart, attention never looks across), bit 2: padding
// Row r belongs to micro-batch r / batch_size; step s uses the next batch_size x accumulation rows;
// after the last row the first follows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace poros {

struct TokenFile {
  static constexpr std::uint8_t kSupervised = 1, kDocumentStart = 2, kPadding = 4;
  std::int64_t seq_len = 0, rows = 0, vocab = 0;
  std::string note;                 // JSON text
  std::vector<std::uint32_t> ids;   // [rows, seq_len]
  std::vector<std::uint8_t> flags;  // [rows, seq_len]
  std::string sha256;               // of the file
};

/// Reads and checks a token file (sizes, ids below vocab, first token of a row starts a document
/// and is never supervised). @throws Error(Fault::input) naming the path and what is wrong.
[[nodiscard]] TokenFile read_token_file(const std::filesystem::path& path);

/// The file's bytes for given content (ids, flags, seq_len, rows, vocab, note).
[[nodiscard]] std::string token_file_bytes(const TokenFile& tokens);

}  // namespace poros
