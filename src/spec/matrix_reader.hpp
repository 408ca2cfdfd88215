// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/section_reader.hpp"
#include "spec/spec.hpp"

namespace poros {

/// Reads `sweep`, `include`, `overrides` and `exclude` of a spec's top mapping; notes faults in the
/// reader.
[[nodiscard]] MatrixSpec read_matrix(const YamlNode& root, SectionReader& reader);

/// The rules as they stand in spec.json; lists that are empty are left out, so that a spec without
/// a matrix stays as it was.
void add_matrix(Json& spec, const MatrixSpec& matrix);

/// Inverse of add_matrix. @throws Error(Fault::input)
[[nodiscard]] MatrixSpec matrix_from_json(const Json& spec, const std::string& origin);

}  // namespace poros
