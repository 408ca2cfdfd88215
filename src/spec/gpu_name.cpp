// SPDX-License-Identifier: Apache-2.0
#include "spec/gpu_name.hpp"

#include <cctype>

namespace poros {

bool is_same_gpu(const std::string& wanted, const std::string& found) {
  const auto plain = [](const std::string& text) {
    std::string out;
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if (std::isalnum(byte) != 0) out += static_cast<char>(std::tolower(byte));
    }
    return out;
  };
  const std::string a = plain(wanted), b = plain(found);
  return !a.empty() && !b.empty() &&
         (a.find(b) != std::string::npos || b.find(a) != std::string::npos);
}

}  // namespace poros
