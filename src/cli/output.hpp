// SPDX-License-Identifier: Apache-2.0
// What commands print on stdout.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.hpp"

namespace poros {

/// @throws Error(Fault::io) when stdout can't take it (disk full, reader gone)
void print_text(std::string_view text);
/// One JSON value, indented, and a line feed.
void print_json(const Json& value);
void flush_stdout();

/// A table for people: columns two spaces apart, a rule below the header, numbers on the right.
struct TextTable {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;  // each as long as the header
  std::string numbers;                         // one letter a column: 'r' right, else left

  [[nodiscard]] std::string text() const;
};

/// Columns that a text takes on a terminal: its characters, without combining marks.
[[nodiscard]] std::size_t display_width(std::string_view text);

/// 12345678 -> "12.3 MB" (10^6 bytes).
[[nodiscard]] std::string bytes_text(double bytes);

}  // namespace poros
