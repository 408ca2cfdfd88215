// SPDX-License-Identifier: Apache-2.0
#include "spec/text_form.hpp"

#include <algorithm>
#include <cstdint>

#include "base/files.hpp"

namespace poros {
namespace {

constexpr std::size_t kMaxText = 1024;  // [bytes]

bool is_word_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.';
}

/// One part of a hub id: word characters, begins with a letter, digit or '_', at most 96 bytes.
bool is_hub_part(std::string_view part) {
  return !part.empty() && part.size() <= 96 && part[0] != '-' && part[0] != '.' &&
         part.find("..") == part.npos && std::ranges::all_of(part, is_word_char);
}

bool is_hub_id(std::string_view text) {
  const auto slash = text.find('/');
  return slash != text.npos && is_hub_part(text.substr(0, slash)) &&
         is_hub_part(text.substr(slash + 1));
}

bool is_revision(std::string_view text) {
  return !text.empty() && text[0] != '-' && text[0] != '/' && text[0] != '.' &&
         text.find("..") == text.npos && text.back() != '/' &&
         std::ranges::all_of(text, [](char c) { return is_word_char(c) || c == '/'; });
}

/// Module names and PEFT's patterns: visible ASCII without quotes or white space.
bool is_module_pattern(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return c > ' ' && c < 0x7f && c != '"' && c != '\'' && c != '`';
  });
}

bool has_control_character(std::string_view text) {
  return std::ranges::any_of(text, [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte == 0x7f;
  });
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

/// Optimal string alignment distance over three rows.
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) above[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replace = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

}  // namespace

bool is_local_path(std::string_view text) {
  return text.starts_with("/") || text.starts_with("./") || text.starts_with("../");
}

std::string printable(std::string_view text) {
  constexpr std::size_t limit = 60;
  std::string result(text.substr(0, limit));
  if (text.size() > limit) {  // cut before a character, not inside one
    while (!result.empty() && find_invalid_utf8(result) != result.npos) result.pop_back();
    result += "...";
  }
  for (char& c : result) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) c = '?';
  }
  return result;
}

std::optional<std::string> form_complaint(TextForm form, const std::string& text) {
  if (text.empty()) return "the text is empty";
  if (text.size() > kMaxText) return fmt::format("the text is longer than {} bytes", kMaxText);
  if (has_control_character(text)) return "the text holds a control character";
  bool good = true;
  switch (form) {
    case TextForm::any:
      break;
    case TextForm::id:
      good = is_valid_id(text);
      break;
    case TextForm::model:
      good = is_local_path(text) || is_hub_id(text);
      break;
    case TextForm::dataset:
      good = text == "synthetic" || is_local_path(text) || is_hub_id(text);
      break;
    case TextForm::revision:
      good = is_revision(text);
      break;
    case TextForm::module:
      good = is_module_pattern(text);
      break;
  }
  if (good) return std::nullopt;
  return fmt::format("\"{}\" is not valid", printable(text));
}

std::string form_expectation(TextForm form) {
  switch (form) {
    case TextForm::any:
      return "text";
    case TextForm::id:
      return "1 to 64 letters, digits, '.', '_' or '-', the first a letter or digit";
    case TextForm::model:
      return "a hub id such as Qwen/Qwen2.5-7B, or a path that begins with /, ./ or ../";
    case TextForm::dataset:
      return "\"synthetic\", a hub id such as org/name, or a path that begins with /, ./ or ../";
    case TextForm::revision:
      return "a branch, tag or commit";
    case TextForm::module:
      return "names of linear layers such as q_proj";
  }
  return "text";
}

std::string form_pattern(TextForm form) {
  const std::string path_or_hub =
      R"(/|\./|\.\./|[A-Za-z0-9_][A-Za-z0-9._-]*/[A-Za-z0-9_][A-Za-z0-9._-]*$)";
  switch (form) {
    case TextForm::any:
      return "";
    case TextForm::id:
      return "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$";
    case TextForm::model:
      return "^(" + path_or_hub + ")";
    case TextForm::dataset:
      return "^(synthetic$|" + path_or_hub + ")";
    case TextForm::revision:
      return "^[A-Za-z0-9_][A-Za-z0-9._/-]*$";
    case TextForm::module:
      return "^[!-~]+$";
  }
  return "";
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  if (word.size() > 64) return {};
  const std::string given = lower(word);
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(1, given.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(given, lower(candidate));
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string markdown_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows.front().size(), 3);
  for (const auto& row : rows) {
    for (std::size_t i = 0; i + 1 < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::size_t i = 0; i < widths.size(); ++i) {
      text += fmt::format("| {:<{}} ", rows[r][i], widths[i]);
    }
    text += "|\n";
    if (r != 0) continue;
    for (const std::size_t width : widths) text += fmt::format("|{:-<{}}", "", width + 2);
    text += "|\n";
  }
  return text;
}

std::size_t find_invalid_utf8(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(text[at]); };
    const unsigned char first = byte(i);
    std::size_t length = 0;
    std::uint32_t code = 0, smallest = 0;
    if (first < 0x80) {
      ++i;
      continue;
    }
    if (first >= 0xc2 && first <= 0xdf) length = 2, code = first & 0x1fU, smallest = 0x80;
    if ((first & 0xf0U) == 0xe0) length = 3, code = first & 0x0fU, smallest = 0x800;
    if (first >= 0xf0 && first <= 0xf4) length = 4, code = first & 0x07U, smallest = 0x10000;
    if (length == 0 || i + length > text.size()) return i;
    for (std::size_t k = 1; k < length; ++k) {
      if ((byte(i + k) & 0xc0U) != 0x80) return i;
      code = (code << 6U) | (byte(i + k) & 0x3fU);
    }
    const bool surrogate = code >= 0xd800 && code <= 0xdfff;
    if (code < smallest || code > 0x10ffff || surrogate) return i;
    i += length;
  }
  return text.npos;
}

}  // namespace poros
