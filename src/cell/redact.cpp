// SPDX-License-Identifier: Apache-2.0
#include "cell/redact.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <vector>

#include <unistd.h>

namespace poros {
namespace {

constexpr std::size_t kShortestSecret = 6;

std::string url_encoded(std::string_view text) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || c == '-' || c == '_' || c == '.' || c == '~') {
      out += c;
    } else {
      out += '%';
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
  }
  return out;
}

/// The passwords of "scheme://user:password@host", wherever such stand in the text.
std::vector<std::string> passwords_in_urls(std::string_view text) {
  std::vector<std::string> found;
  for (std::size_t at = text.find("://"); at != text.npos; at = text.find("://", at + 3)) {
    const std::string_view rest = text.substr(at + 3);
    const std::string_view authority = rest.substr(0, rest.find_first_of("/?# \t\n\"',;"));
    const std::size_t end = authority.rfind('@');
    const std::size_t colon = authority.find(':');
    if (end != text.npos && colon < end) {
      found.emplace_back(authority.substr(colon + 1, end - colon - 1));
    }
  }
  return found;
}

/// Base64 without the padding and without the last sextet, which depends on what may follow.
std::string base64_stem(std::string_view text) {
  static constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    bits = (bits << 8) | static_cast<unsigned char>(c);
    count += 8;
    while (count >= 6) {
      count -= 6;
      out += kDigits[(bits >> count) & 63];
    }
  }
  return out;
}

}  // namespace

bool is_secret_name(std::string_view name) {
  std::string upper(name);
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  static constexpr std::array<std::string_view, 7> kParts{"TOKEN",      "KEY",    "SECRET", "PASS",
                                                          "CREDENTIAL", "COOKIE", "AUTH"};
  return std::any_of(kParts.begin(), kParts.end(),
                     [&](std::string_view part) { return upper.find(part) != std::string::npos; });
}

std::map<std::string, std::string> current_environment() {
  std::map<std::string, std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const auto equals = text.find('=');
    if (equals != std::string_view::npos) {
      result.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return result;
}

Redactor::Redactor(const std::map<std::string, std::string>& environment) {
  const auto add = [this](const std::string& name, const std::string& value) {
    if (value.size() < kShortestSecret) return;
    const std::string replacement = "[redacted:" + name + "]";
    for (const std::string& form : {value, url_encoded(value), base64_stem(value)}) {
      const bool known = std::any_of(needles_.begin(), needles_.end(),
                                     [&](const Needle& needle) { return needle.text == form; });
      if (form.size() >= kShortestSecret && !known) needles_.push_back({form, replacement});
    }
  };
  for (const auto& [name, value] : environment) {
    if (is_secret_name(name)) add(name, value);
    for (const std::string& password : passwords_in_urls(value)) add(name, password);
  }
  std::stable_sort(needles_.begin(), needles_.end(),
                   [](const Needle& a, const Needle& b) { return a.text.size() > b.text.size(); });
  if (!needles_.empty()) longest_ = needles_.front().text.size();
}

std::string Redactor::take(std::string& pending, bool last) const {
  // A secret that begins at or after `certain` may not be complete yet.
  const std::size_t held = longest_ == 0 ? 0 : longest_ - 1;
  const std::size_t certain =
      last ? pending.size() : (pending.size() > held ? pending.size() - held : 0);
  std::string out;
  std::size_t at = 0;
  while (at < certain) {
    std::size_t first = std::string::npos;
    const Needle* found = nullptr;
    for (const Needle& needle : needles_) {  // longest first: it wins where two begin together
      const std::size_t place = pending.find(needle.text, at);
      if (place < first) {
        first = place;
        found = &needle;
      }
    }
    if (found == nullptr || first >= certain) break;
    out.append(pending, at, first - at);
    out += found->replacement;
    at = first + found->text.size();
  }
  if (at < certain) {
    out.append(pending, at, certain - at);
    at = certain;
  }
  pending.erase(0, at);
  return out;
}

std::string Redactor::redact(std::string_view text) const {
  std::string pending(text);
  return take(pending, true);
}

Json Redactor::redact_json(const Json& value) const {
  if (longest_ == 0) return value;
  if (value.is_string()) return redact(value.get_ref<const std::string&>());
  if (value.is_array()) {
    Json out = Json::array();
    for (const Json& item : value) out.push_back(redact_json(item));
    return out;
  }
  if (value.is_object()) {
    Json out = Json::object();
    for (const auto& [key, item] : value.items()) out[redact(key)] = redact_json(item);
    return out;
  }
  return value;
}

}  // namespace poros
