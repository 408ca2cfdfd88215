// SPDX-License-Identifier: Apache-2.0
#include "spec/gpu_name.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <vector>

namespace poros {
namespace {

// Words that make another GPU of a name, where only one of two names has them.
constexpr std::array<std::string_view, 6> kVariants{"ti", "super", "laptop", "mobile", "max", "d"};

/// Runs of letters and digits in lower case; what is not ASCII counts as a letter.
std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  bool inside = false;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool letter = std::isalnum(byte) != 0 || byte >= 0x80;
    if (letter && !inside) words.emplace_back();
    if (letter) words.back() += static_cast<char>(std::tolower(byte));
    inside = letter;
  }
  return words;
}

bool has(const std::vector<std::string>& words, std::string_view word) {
  return std::ranges::find(words, word) != words.end();
}

std::string joined(const std::vector<std::string>& words, std::size_t begin, std::size_t end) {
  std::string text;
  for (std::size_t i = begin; i < end; ++i) text += words[i];
  return text;
}

/// Whether every word of `part` is among those of `whole`, or "RTX3090" is its "RTX 3090".
bool is_part(const std::vector<std::string>& part, const std::vector<std::string>& whole) {
  if (std::ranges::all_of(part, [&](const std::string& word) { return has(whole, word); })) {
    return true;
  }
  const std::string wanted = joined(part, 0, part.size());
  for (std::size_t begin = 0; begin < whole.size(); ++begin) {
    for (std::size_t end = begin + 1; end <= whole.size(); ++end) {
      if (joined(whole, begin, end) == wanted) return true;
    }
  }
  return false;
}

}  // namespace

bool is_same_gpu(const std::string& wanted, const std::string& found) {
  const std::vector<std::string> a = words_of(wanted), b = words_of(found);
  if (a.empty() || b.empty()) return false;
  for (const std::string_view variant : kVariants) {
    if (has(a, variant) != has(b, variant)) return false;
  }
  return is_part(a, b) || is_part(b, a);
}

}  // namespace poros
