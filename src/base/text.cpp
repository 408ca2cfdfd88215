// SPDX-License-Identifier: Apache-2.0
#include "base/text.hpp"

#include <cstdlib>

namespace poros {

std::string environment_variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::vector<std::string> split(std::string_view text, char mark) {
  std::vector<std::string> parts;
  while (true) {
    const auto end = text.find(mark);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

}  // namespace poros
