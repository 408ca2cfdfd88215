// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace poros {

/// The value of an environment variable; empty where it isn't set.
[[nodiscard]] std::string environment_variable(const char* name);

/// The parts between marks: one more than there are marks, empty ones included.
[[nodiscard]] std::vector<std::string> split(std::string_view text, char mark);

}  // namespace poros
