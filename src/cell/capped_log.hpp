// SPDX-License-Identifier: Apache-2.0
// A cell's log file: everything up to a limit, beyond that the first and the last half.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/files.hpp"
#include "cell/redact.hpp"

namespace poros {

class CappedLog {
 public:
  /// Creates the file (its folder must exist). `redactor` must outlive the log.
  /// @throws Error(Fault::io)
  CappedLog(std::filesystem::path path, std::size_t limit_bytes, const Redactor& redactor);

  /// Takes the cell's output as it comes; any bytes, also such that are not UTF-8. A full disk does
  /// not disturb the cell: the text is dropped and error() says so.
  void append(std::string_view bytes);

  /// Writes what was held back. To be called once, when the output has ended.
  void finish();

  [[nodiscard]] std::uint64_t bytes_seen() const { return bytes_seen_; }
  /// Last part of the redacted text (at most 4 KiB), for records and messages.
  [[nodiscard]] const std::string& last_text() const { return last_text_; }
  /// Empty, or why the file is not complete.
  [[nodiscard]] const std::string& error() const { return error_; }

 private:
  void put(std::string_view text);
  void write(std::string_view text);

  std::filesystem::path path_;
  std::size_t head_limit_, tail_limit_;
  const Redactor& redactor_;
  UniqueFd fd_;
  std::string pending_;  // not yet redacted
  std::string tail_;     // beyond the head, at most twice tail_limit_ between two trims
  std::string last_text_, error_;
  std::size_t head_bytes_ = 0;
  std::uint64_t bytes_seen_ = 0, dropped_ = 0;
};

}  // namespace poros
