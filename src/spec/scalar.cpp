// SPDX-License-Identifier: Apache-2.0
#include "spec/scalar.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string_view>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "spec/text_form.hpp"

namespace poros {
namespace {

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return text;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool all_digits(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, is_digit);
}

std::string_view without_sign(std::string_view text) {
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  return text;
}

/// yes, no, on, off and the like: what YAML 1.1 took for booleans.
bool is_boolean_word(const std::string& text) {
  static constexpr std::array<std::string_view, 8> words = {"yes",  "no",    "on", "off",
                                                            "true", "false", "y",  "n"};
  return std::ranges::find(words, lower(text)) != words.end();
}

bool is_null_word(const std::string& text) {
  return text == "~" || lower(text) == "null";
}

bool is_not_finite_word(const std::string& text) {
  const std::string word = lower(std::string(without_sign(text)));
  return word == ".nan" || word == ".inf" || word == "nan" || word == "inf" || word == "infinity";
}

enum class Numeral { none, integer, decimal, octal, hex, other };

/// What kind of number a plain scalar looks like.
Numeral numeral(std::string_view text) {
  const bool plus = text.starts_with('+');
  std::string_view digits = without_sign(text);
  if (digits.empty()) return Numeral::none;
  const auto prefix = digits.substr(0, 2);
  if (prefix == "0x" || prefix == "0X") return Numeral::hex;
  if (prefix == "0o" || prefix == "0O" || prefix == "0b" || prefix == "0B") return Numeral::octal;
  if (all_digits(digits)) {
    if (digits.size() > 1 && digits[0] == '0') return Numeral::octal;
    return plus ? Numeral::other : Numeral::integer;
  }
  if (!is_digit(digits[0]) && !(digits[0] == '.' && digits.size() > 1 && is_digit(digits[1]))) {
    return Numeral::none;
  }
  // digits [. digits] [e [sign] digits]; nothing else may follow
  std::size_t i = 0;
  const auto run = [&] {
    const std::size_t from = i;
    while (i < digits.size() && is_digit(digits[i])) ++i;
    return i - from;
  };
  const std::size_t whole = run();
  std::size_t fraction = 1;
  if (i < digits.size() && digits[i] == '.') {
    ++i;
    fraction = run();
  }
  std::size_t exponent = 1;
  if (i < digits.size() && (digits[i] == 'e' || digits[i] == 'E')) {
    ++i;
    if (i < digits.size() && (digits[i] == '-' || digits[i] == '+')) ++i;
    exponent = run();
  }
  if (i != digits.size()) {
    const bool separated = std::ranges::all_of(
        digits, [](char c) { return is_digit(c) || c == '_' || c == ',' || c == ':'; });
    return separated ? Numeral::other : Numeral::none;
  }
  const bool leading_zero = whole > 1 && digits[0] == '0';
  const bool complete = whole > 0 && fraction > 0 && exponent > 0;
  return complete && !plus && !leading_zero ? Numeral::decimal : Numeral::other;
}

ScalarResult wrong(std::string what, std::string hint = {}) {
  return {nullptr, std::move(what), std::move(hint)};
}

/// What stands there instead of a number.
ScalarResult not_a_number(const YamlNode& node) {
  const std::string shown = printable(node.text);
  if (node.quoted) return wrong(fmt::format("\"{}\" in quotes is text", shown));
  if (is_not_finite_word(node.text)) return wrong(fmt::format("{} is not finite", shown));
  switch (numeral(node.text)) {
    case Numeral::octal:
      return wrong(fmt::format("{} could be octal or binary", shown), "write it without leading 0");
    case Numeral::hex:
      return wrong(fmt::format("{} is hexadecimal", shown), "write it in decimal");
    case Numeral::other:
      return wrong(fmt::format("{} is not a plain decimal number", shown),
                   "write digits with '.' alone, such as 0.5 or 1000");
    default:
      break;
  }
  if (is_boolean_word(node.text)) return wrong(fmt::format("{} is a boolean", shown));
  return wrong(fmt::format("\"{}\" is text", shown));
}

ScalarResult read_integer(const YamlNode& node) {
  const Numeral kind = node.quoted ? Numeral::none : numeral(node.text);
  if (kind == Numeral::decimal) {
    return wrong(fmt::format("{} is not an integer", printable(node.text)));
  }
  if (kind != Numeral::integer) return not_a_number(node);
  std::int64_t value = 0;
  const char* end = node.text.data() + node.text.size();
  const auto [stop, error] = std::from_chars(node.text.data(), end, value);
  if (error != std::errc() || stop != end) {
    return wrong(fmt::format("{} is out of range", printable(node.text)));
  }
  return {value, {}, {}};
}

ScalarResult read_number(const YamlNode& node) {
  const Numeral kind = node.quoted ? Numeral::none : numeral(node.text);
  if (kind != Numeral::integer && kind != Numeral::decimal) return not_a_number(node);
  double value = 0;
  const char* end = node.text.data() + node.text.size();
  const auto [stop, error] = std::from_chars(node.text.data(), end, value);
  if (error != std::errc() || stop != end || !std::isfinite(value)) {
    return wrong(fmt::format("{} is out of range of a double", printable(node.text)));
  }
  return {value, {}, {}};
}

ScalarResult read_boolean(const YamlNode& node) {
  const std::string word = lower(node.text);
  const std::string shown = printable(node.text);
  if (node.quoted) return wrong(fmt::format("\"{}\" in quotes is text", shown));
  if (node.text == "true" || node.text == "false") return {node.text == "true", {}, {}};
  const std::string what = fmt::format("\"{}\" is not a boolean", shown);
  if (!is_boolean_word(node.text) && node.text != "1" && node.text != "0") return wrong(what);
  const bool truth = word == "true" || word == "yes" || word == "on" || word == "y" || word == "1";
  return wrong(what, truth ? "did you mean true?" : "did you mean false?");
}

ScalarResult read_text(const YamlNode& node, const std::vector<std::string>& choices) {
  if (node.quoted || std::ranges::find(choices, node.text) != choices.end()) {
    return {node.text, {}, {}};
  }
  const char* what = nullptr;
  if (numeral(node.text) != Numeral::none || is_not_finite_word(node.text)) what = "a number";
  if (is_boolean_word(node.text)) what = "a boolean";
  if (what == nullptr) return {node.text, {}, {}};
  if (!choices.empty()) return wrong(fmt::format("{} is {}, not text", printable(node.text), what));
  return wrong(fmt::format("{} is {} to YAML, not text", printable(node.text), what),
               fmt::format("write it in quotes: \"{}\"", printable(node.text)));
}

ScalarResult read_duration(const YamlNode& node) {
  const Numeral kind = node.quoted ? Numeral::none : numeral(node.text);
  if (kind == Numeral::octal || kind == Numeral::hex || kind == Numeral::other) {
    return not_a_number(node);
  }
  try {
    return {parse_duration_s(node.text), {}, {}};
  } catch (const Error&) {
    return wrong(fmt::format("\"{}\" is not a duration", printable(node.text)));
  }
}

}  // namespace

ScalarResult read_scalar(const YamlNode& node, KeyType type,
                         const std::vector<std::string>& choices) {
  switch (node.kind) {
    case YamlNode::Kind::list:
      return wrong("a list stands here");
    case YamlNode::Kind::map:
      return wrong("a mapping stands here");
    case YamlNode::Kind::null:
      return wrong("there is no value");
    case YamlNode::Kind::scalar:
      break;
  }
  if (!node.quoted && is_null_word(node.text)) return wrong("there is no value");
  switch (type) {
    case KeyType::integer:
      return read_integer(node);
    case KeyType::number:
      return read_number(node);
    case KeyType::boolean:
      return read_boolean(node);
    case KeyType::duration:
      return read_duration(node);
    default:
      return read_text(node, choices);
  }
}

}  // namespace poros
