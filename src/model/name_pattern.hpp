// SPDX-License-Identifier: Apache-2.0
// Keys of rank_pattern and alpha_pattern, matched against module names as PEFT does.
#pragma once

#include <map>
#include <string>

namespace poros {

/// True when a key fits a module's name: PEFT's re.match(r"(.*\.)?(KEY)$", name), so that a key is
/// a regular expression for the name's last dotted parts, or for the whole of it. Keys of letters,
/// digits, '_' and '.', with or without a leading '^', are compared as text.
/// @param what begins error messages ("rank_pattern")
/// @throws Error(Fault::input): no valid expression, over 512 characters, or it takes too long
[[nodiscard]] bool pattern_fits(const std::string& key, const std::string& name, const char* what);

/// True for keys that are compared as text.
[[nodiscard]] bool is_plain_key(const std::string& key);

/// The value of the first key, in sorted order, that fits; nullptr when none does. PEFT takes the
/// first in the order of the file, and files of this project are sorted.
template <class T>
[[nodiscard]] const T* first_fitting(const std::map<std::string, T>& patterns,
                                     const std::string& name, const char* what) {
  for (const auto& [key, value] : patterns) {
    if (pattern_fits(key, name, what)) return &value;
  }
  return nullptr;
}

}  // namespace poros
