// SPDX-License-Identifier: Apache-2.0
// These test programs are also the programs that their campaigns start.
#pragma once

#include <optional>

namespace poros::testing {

/// Runs what argv asks for where that is the supervisor, a fake cell, the fake tokeniser or
/// `__drive`. @returns its exit code; nothing: this is the test itself
[[nodiscard]] std::optional<int> other_program(int argc, char** argv);

}  // namespace poros::testing
