// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "model/base_store.hpp"
#include "model/precision.hpp"

namespace poros {

/// A base of which only the shapes are known: what config.json alone tells. It serves the memory
/// plan; reading its bytes is an error.
[[nodiscard]] std::unique_ptr<BaseStore> shape_store(const Architecture& architecture,
                                                     const Precision& precision);

}  // namespace poros
