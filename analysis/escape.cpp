// SPDX-License-Identifier: Apache-2.0
#include "analysis/escape.hpp"

#include <cstdint>

#include "base/sha256.hpp"

namespace poros {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

/// Control characters have no meaning in a document and some can't stand in one.
bool is_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f;
}

}  // namespace

std::string html_text(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 16);
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        if (is_control(c)) {
          out += kReplacement;
        } else {
          out += c;
        }
    }
  }
  return out;
}

std::string relative_url(std::string_view path) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  bool segment_start = true;
  for (const char c : path) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || (c == '.' && !segment_start);
    if (c == '/') {
      if (!segment_start) out += '/';
      segment_start = true;
      continue;
    }
    if (plain) {
      out += c;
    } else if (c == '.') {
      out += "%252E";  // a plain %2E at a segment's start would still read as "." or ".."
    } else {
      const auto byte = static_cast<unsigned char>(c);
      out += '%';
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
    segment_start = false;
  }
  return out;
}

std::string markdown_text(std::string_view text) {
  static constexpr std::string_view kMarkup = "|`*_[]\\#~!$";
  std::string out;
  out.reserve(text.size() + 16);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const auto follows = [&](std::string_view what) {
      return text.substr(i + 1).starts_with(what);
    };
    if (c == '\n' || c == '\r' || c == '\t') {
      out += ' ';
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == ':' && follows("/")) {  // some readers make bare addresses into links
      out += "&#58;";
    } else if (c == '.' && i >= 3 &&
               (text.substr(i - 3, 3) == "www" || text.substr(i - 3, 3) == "WWW")) {
      out += "&#46;";
    } else if (c == '@') {
      out += "&#64;";
    } else if (kMarkup.find(c) != std::string_view::npos) {
      out += '\\';
      out += c;
    } else if (is_control(c)) {
      out += kReplacement;
    } else {
      out += c;
    }
  }
  return out;
}

std::string csp_hash(std::string_view script) {
  static constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const std::string hex = sha256_hex(script);
  std::string bytes;
  const auto nibble = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    bytes += static_cast<char>(nibble(hex[i]) * 16 + nibble(hex[i + 1]));
  }
  std::string out = "'sha256-";
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      group = group << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      out += i + j <= bytes.size() ? kDigits[group >> (18 - 6 * j) & 63] : '=';
    }
  }
  return out + "'";
}

}  // namespace poros
