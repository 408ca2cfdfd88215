// SPDX-License-Identifier: Apache-2.0
#include "model/name_pattern.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <memory>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.hpp"
#include "model/lora_match.hpp"

namespace poros {
namespace {

constexpr std::size_t kMaxKey = 512;
// Names have some 60 characters: what needs more steps than this backtracks without end.
constexpr std::uint32_t kMaxSteps = 10000;

struct Free {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

[[noreturn]] void refuse(const std::string& key, const char* what, int error) {
  std::array<PCRE2_UCHAR, 160> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  fail(Fault::input, "{}: key \"{:.80}\" is no usable regular expression: {}", what, key,
       reinterpret_cast<const char*>(text.data()));
}

bool expression_fits(const std::string& key, const std::string& name, const char* what) {
  if (key.size() > kMaxKey) {
    fail(Fault::input, "{}: key \"{:.80}...\" is longer than {} characters", what, key, kMaxKey);
  }
  const std::string whole = "(.*\\.)?(" + key + ")$";
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::unique_ptr<pcre2_code, Free> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(whole.data()), whole.size(),
                    PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr));
  if (code == nullptr) refuse(key, what, error);
  const std::unique_ptr<pcre2_match_data, Free> data(
      pcre2_match_data_create_from_pattern(code.get(), nullptr));
  const std::unique_ptr<pcre2_match_context, Free> context(pcre2_match_context_create(nullptr));
  if (data == nullptr || context == nullptr) fail(Fault::run, "{}: out of memory", what);
  pcre2_set_match_limit(context.get(), kMaxSteps);
  pcre2_set_heap_limit(context.get(), 1024);  // [KiB]
  const int found = pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(name.data()), name.size(),
                                0, 0, data.get(), context.get());
  if (found >= 0) return true;
  if (found == PCRE2_ERROR_NOMATCH) return false;
  refuse(key, what, found);
}

}  // namespace

bool is_plain_key(const std::string& key) {
  const std::size_t first = key.starts_with('^') ? 1 : 0;
  return std::all_of(key.begin() + static_cast<std::ptrdiff_t>(first), key.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.'; });
}

bool pattern_fits(const std::string& key, const std::string& name, const char* what) {
  if (!is_plain_key(key)) return expression_fits(key, name, what);
  return key.starts_with('^') ? name == key.substr(1) : is_name_suffix(name, key);
}

}  // namespace poros
