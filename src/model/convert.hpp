// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "model/base_store.hpp"
#include "model/safetensors.hpp"

namespace poros {

/// True when one of `count` values of a floating type (f32, f16, bf16) is NaN or infinite.
[[nodiscard]] bool has_non_finite(TensorType type, const void* values, std::int64_t count);

/// Converts values to a storage (not nf4), to nearest, ties to even; equal types are copied.
/// @returns false when a finite value became infinite (an fp16 that is too small for it)
[[nodiscard]] bool convert_values(TensorType type, const void* values, std::int64_t count,
                                  Storage storage, void* into);

}  // namespace poros
