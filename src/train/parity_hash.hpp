// SPDX-License-Identifier: Apache-2.0
// Hash of every value that a step makes, so that two arms can be compared bit by bit without
// keeping their tensors.
#pragma once

#include <map>
#include <span>
#include <string>

#include "train/optimizer.hpp"

namespace poros {

/// First 32 hex digits of the sha256 of the values' fp32 bytes (little-endian, row-major).
[[nodiscard]] std::string parity_hash(std::span<const float> values);

/// Hash of each tensor in host memory: kind ("gradient", "exp_avg", "exp_avg_sq", "weight") -> PEFT
/// tensor name -> parity_hash. Gradients are those before clipping.
[[nodiscard]] std::map<std::string, std::map<std::string, std::string>> parity_hashes(
    const FlatParameters& parameters);

}  // namespace poros
