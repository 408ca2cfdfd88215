// SPDX-License-Identifier: Apache-2.0
// Typed access to operands of the CPU kernels. Internal to kernels/.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu_math.hpp"
#include "kernels/dtype.hpp"

namespace poros::cpu {

template <typename T>
[[nodiscard]] POROS_KERNEL_INLINE const T* row_of(const void* base, std::int64_t offset) {
  return static_cast<const T*>(base) + offset;
}
template <typename T>
[[nodiscard]] POROS_KERNEL_INLINE T* row_of(void* base, std::int64_t offset) {
  return static_cast<T*>(base) + offset;
}

/// Row stride with 0 standing for contiguous rows.
[[nodiscard]] inline std::int64_t stride_or(std::int64_t stride, std::int64_t width) {
  return stride != 0 ? stride : width;
}

/// A vector operand (a norm's weight, a bias) as floats.
[[nodiscard]] inline std::vector<float> as_floats(const void* data, DType dtype,
                                                  std::int64_t count) {
  std::vector<float> floats(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    switch (dtype) {
      case DType::f32:
        floats[static_cast<std::size_t>(i)] = row_of<float>(data, i)[0];
        break;
      case DType::bf16:
        floats[static_cast<std::size_t>(i)] = to_float(row_of<Bf16>(data, i)[0]);
        break;
      case DType::f16:
        floats[static_cast<std::size_t>(i)] = to_float(row_of<F16>(data, i)[0]);
        break;
    }
  }
  return floats;
}

}  // namespace poros::cpu
