// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace poros {

/// "GeForce RTX 3090" is "NVIDIA GeForce RTX 3090": letters and digits, one within the other.
[[nodiscard]] bool is_same_gpu(const std::string& wanted, const std::string& found);

}  // namespace poros
