// SPDX-License-Identifier: Apache-2.0
// The fields of a RunArtifact ({method}_{arch}_{precision}.json) for people and programs. A test
// holds this table and the record's own list of fields together.
#pragma once

#include <string>
#include <vector>

#include "base/json.hpp"

namespace poros {

struct ArtifactField {
  const char* name;
  const char* type;  // a JSON Schema type, or "numbers" and "texts" for lists of them
  bool nullable;     // null: not measured, or not known
  const char* unit;
  const char* text;
};

[[nodiscard]] const std::vector<ArtifactField>& artifact_fields();
[[nodiscard]] std::string artifact_markdown();
/// A JSON Schema (draft 2020-12).
[[nodiscard]] Json artifact_json();

}  // namespace poros
