// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "spec/spec.hpp"

namespace poros {

/// Reads and checks a spec file. Relative paths of models and datasets are taken from the spec's
/// folder. Looks at nothing but the file and creates nothing.
/// @throws Error(Fault::input) with all faults that were found, one a line:
///   file:line:column: what is wrong; what was expected; did you mean ...
[[nodiscard]] BenchmarkSpec read_spec(const std::filesystem::path& file);

/// The same for text in memory; `origin` begins each message, `folder` is where relative paths
/// begin.
[[nodiscard]] BenchmarkSpec parse_spec(std::string_view text, const std::string& origin,
                                       const std::filesystem::path& folder);

}  // namespace poros
