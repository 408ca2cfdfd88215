// SPDX-License-Identifier: Apache-2.0
// Pieces of lora_places() that the adapter reader uses too.
#pragma once

#include <string>

#include "model/adapter.hpp"

namespace poros {

/// True when `suffix` is `name` or its last dotted parts: "q_proj" of "layers.0.self_attn.q_proj".
[[nodiscard]] bool is_name_suffix(const std::string& name, const std::string& suffix);

/// Sizes, name, rank and scale of the adapter of one linear.
[[nodiscard]] LoraPlace make_place(const Architecture& architecture, std::int64_t layer,
                                   const LinearShape& linear, const LoraSpec& lora);

}  // namespace poros
