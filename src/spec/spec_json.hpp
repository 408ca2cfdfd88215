// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "base/json.hpp"
#include "spec/spec.hpp"

namespace poros {

/// The whole spec with every default written out: what spec.json holds. Durations are in seconds,
/// keys that were not set are null, an empty target_modules means all linear layers.
[[nodiscard]] Json spec_to_json(const BenchmarkSpec& spec);

/// Inverse of spec_to_json; absent keys get their defaults, unknown keys are refused. The members
/// that only the reader sets (file, path) stay empty. @throws Error(Fault::input).
[[nodiscard]] BenchmarkSpec spec_from_json(const Json& json, const std::string& origin);

/// sha256 of the spec without what does not count for its work: reporting, timeouts, n_passes,
/// parity and labels. Two specs with the same hash can go on in one campaign folder.
[[nodiscard]] std::string spec_sha256(const Json& spec);
[[nodiscard]] std::string spec_sha256(const BenchmarkSpec& spec);

struct SpecDifference {
  std::string path;           // "training.steps", "models[1].model_id"
  std::string before, after;  // as JSON text; "--" where there is none
};

/// The keys that count and differ, in schema order; empty exactly when the hashes are equal.
[[nodiscard]] std::vector<SpecDifference> spec_differences(const Json& before, const Json& after);

}  // namespace poros
