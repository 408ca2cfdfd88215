// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "spec/cell_spec.hpp"
#include "spec/spec.hpp"

namespace poros {

/// The cells of a spec: hardware x models x precisions x methods, in the order of the spec, so that
/// the cells of a comparison group stand together. @throws Error(Fault::input) when two have the
/// same key.
[[nodiscard]] std::vector<CellSpec> expand(const BenchmarkSpec& spec);

/// The name of each cell's RunArtifact: {method}_{slug}_{precision}.json; where two cells would
/// share it, all of them get _<first 8 hex digits of the key> before the dot.
[[nodiscard]] std::vector<std::string> artifact_names(const std::vector<CellSpec>& cells);

}  // namespace poros
