// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "spec/cell_spec.hpp"
#include "spec/spec.hpp"

namespace poros {

inline constexpr std::size_t kMostCells = 100'000;

/// The cells of a spec: hardware x models x precisions x methods, in the order of the spec, so that
/// the cells of a comparison group stand together; then what sweep, include, overrides and exclude
/// make of them. A swept key that an arm does not read makes no second cell of it.
/// @throws Error(Fault::input) when two cells have the same key, a rule matches nothing, values of
///         a cell don't go together, or there are more than kMostCells
[[nodiscard]] std::vector<CellSpec> expand(const BenchmarkSpec& spec);

/// The name of each cell's RunArtifact: {method}_{slug}_{precision}.json; where two cells would
/// share it, all of them get _<first 8 hex digits of the key> before the dot.
[[nodiscard]] std::vector<std::string> artifact_names(const std::vector<CellSpec>& cells);

}  // namespace poros
