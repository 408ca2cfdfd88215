// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "base/json.hpp"
#include "spec/spec.hpp"

namespace poros {

/// The cells of a spec as {spec_id, spec_sha256, output_dir, n_passes, tokens_per_step, groups,
/// cells:
/// [{key, group, method, model_id, display_name, precision, device, gpu_name, steps, file}]}.
/// @throws Error(Fault::input) when two cells are the same
[[nodiscard]] Json plan_json(const BenchmarkSpec& spec);

/// The same for people: a line a cell and a summary.
[[nodiscard]] std::string plan_text(const BenchmarkSpec& spec);

}  // namespace poros
