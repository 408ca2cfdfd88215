// SPDX-License-Identifier: Apache-2.0
// A journal line: {v, seq, epoch, kind, key, <the record's scalar fields>, artifact_path,
// artifact_sha256, sha256}. `sha256` is over the line's canonical JSON without that field.
#pragma once

#include <cstdint>
#include <string>

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

[[nodiscard]] std::string to_line(const Receipt& receipt);  // with '\n'
/// @throws Error(Fault::input) naming origin: not JSON, wrong version, hash mismatch.
[[nodiscard]] Receipt receipt_from_line(std::string_view line, const std::string& origin);

}  // namespace poros
