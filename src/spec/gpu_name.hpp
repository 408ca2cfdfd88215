// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace poros {

/// "RTX 3090" and "RTX3090" are "NVIDIA GeForce RTX 3090": the words of one name are all in the
/// other, in any case. "A10" is no "A100", "RTX 3090" no "RTX 3090 Ti".
[[nodiscard]] bool is_same_gpu(const std::string& wanted, const std::string& found);

}  // namespace poros
