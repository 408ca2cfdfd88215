// SPDX-License-Identifier: Apache-2.0
#include "cli/output.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

namespace poros {

void print_text(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) {
    fail_errno(Fault::io, "stdout");
  }
}

void print_json(const Json& value) {
  print_text(dump_json(value, 2) + "\n");
}

void flush_stdout() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) fail_errno(Fault::io, "stdout");
}

std::size_t display_width(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80; }));
}

std::string TextTable::text() const {
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < header.size(); ++i) {
    widths.push_back(display_width(header[i]));
    for (const auto& row : rows) widths[i] = std::max(widths[i], display_width(row[i]));
  }
  std::string result;
  const auto add_line = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const std::string fill(widths[i] - display_width(cells[i]), ' ');
      const bool right = i < numbers.size() && numbers[i] == 'r';
      line += (i == 0 ? "" : "  ") + (right ? fill + cells[i] : cells[i] + fill);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    result += line + "\n";
  };
  add_line(header);
  std::vector<std::string> rule;
  for (const std::size_t width : widths) rule.emplace_back(width, '-');
  add_line(rule);
  for (const auto& row : rows) add_line(row);
  return result;
}

std::string bytes_text(double bytes) {
  static constexpr std::array<const char*, 5> units = {"B", "kB", "MB", "GB", "TB"};
  std::size_t unit = 0;
  while (bytes >= 1000 && unit + 1 < units.size()) {
    bytes /= 1000;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 1, units[unit]);
}

}  // namespace poros
