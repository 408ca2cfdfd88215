// SPDX-License-Identifier: Apache-2.0
// A journal line: {v, seq, epoch, kind, key, <the record's scalar fields>, artifact_path,
// artifact_sha256, sha256}. `sha256` is over the line's canonical JSON without that field.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.hpp"

namespace poros {

inline constexpr int kReceiptVersion = 1;

struct Receipt {
  std::int64_t seq = 0;    // 0, 1, 2, ... without a gap in one journal
  std::int64_t epoch = 0;  // of the writer; grows with each takeover
  std::string kind;        // attempt | cell | parity
  std::string key;         // cell key, or group key for parity
  Json fields = Json::object();
  std::string artifact_path;    // relative to the campaign folder
  std::string artifact_sha256;  // of that file's bytes
};

/// The scalar members (string, number, boolean, null) of a record's JSON: what a receipt repeats at
/// its top level. Names that a receipt itself uses ("v", "key", ...) are left out.
[[nodiscard]] Json scalar_fields(const Json& record);

/// The line, with '\n'. @throws Error(Fault::run) where a field has a name of the receipt's own.
[[nodiscard]] std::string to_line(const Receipt& receipt);

/// The `sha256` member of the receipt's line.
[[nodiscard]] std::string line_sha256(const Receipt& receipt);

/// Reads one line, with or without its '\n'. Any change of its bytes is seen.
/// @throws Error(Fault::input) naming origin: not JSON, wrong version, hash mismatch.
[[nodiscard]] Receipt receipt_from_line(std::string_view line, const std::string& origin);

}  // namespace poros
