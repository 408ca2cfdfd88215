// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/architecture.hpp"
#include "spec/spec.hpp"

namespace poros {

/// The shapes of a model: from its folder, from its snapshot in the hub's local cache, else from
/// configs/models/<slug>/config.json, where published models lie ("Qwen/Qwen2.5-7B-Instruct" is
/// qwen2.5-7b). @throws Error(Fault::input) when none of them is there, or it can't be trained
[[nodiscard]] Architecture known_architecture(const ModelSpec& model);

}  // namespace poros
