// SPDX-License-Identifier: Apache-2.0
// What a spec would run, as JSON and for people.
#pragma once

#include <filesystem>
#include <string>

#include "base/json.hpp"
#include "spec/spec.hpp"

namespace poros {

/// The cells of a spec as {spec_id, spec_sha256, output_dir, n_passes, tokens_per_step, groups,
/// cells: [{key, group, method, model_id, display_name, variant, precision, device, gpu_name,
/// steps, file, estimate{vram_bytes, host_bytes, s_per_step, s_per_pass, fits, why}}],
/// gpu_hours{<gpu_name>: estimate of one GPU for all passes, null where unknown}}.
/// @throws Error(Fault::input) when the matrix is wrong (spec/expand.hpp)
[[nodiscard]] Json plan_json(const BenchmarkSpec& spec);

/// The same for people. @param all every cell also of a large matrix; else it is summed up by GPU
/// type, model and method
[[nodiscard]] std::string plan_text(const BenchmarkSpec& spec, bool all = false);

}  // namespace poros
