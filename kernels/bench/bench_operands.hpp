// SPDX-License-Identifier: Apache-2.0
// Shapes and operands that the benchmark's cases share.
#pragma once

#include <string>
#include <utility>

#include "bench_cases.hpp"

namespace poros::bench {

inline constexpr std::int64_t kRows = 4096, kHidden = 3584, kIntermediate = 18944;
inline constexpr std::int64_t kHeads = 28, kKvHeads = 4, kHeadDim = 128;

inline std::string shape_of(std::int64_t rows, std::int64_t cols) {
  return std::to_string(rows) + " x " + std::to_string(cols);
}

inline Operand input(std::string name, std::int64_t count, DType dtype = DType::bf16,
                     double scale = 1.0) {
  return {.name = std::move(name),
          .bytes = static_cast<std::size_t>(count) * bytes_of(dtype),
          .dtype = dtype,
          .scale = scale};
}
inline Operand output(std::string name, std::int64_t count, DType dtype = DType::bf16) {
  Operand operand = input(std::move(name), count, dtype);
  operand.fill = Fill::zeros;
  operand.checked = true;
  return operand;
}
inline Operand changed(std::string name, std::int64_t count, DType dtype = DType::bf16) {
  Operand operand = input(std::move(name), count, dtype);
  operand.checked = true;
  return operand;
}
inline Operand integers(std::string name, std::int64_t count, std::int32_t limit) {
  return {.name = std::move(name),
          .fill = Fill::integers,
          .bytes = static_cast<std::size_t>(count) * 4,
          .limit = limit};
}
inline Operand raw_bytes(std::string name, std::int64_t count) {
  return {.name = std::move(name), .fill = Fill::bytes, .bytes = static_cast<std::size_t>(count)};
}

inline float* floats(void* p) {
  return static_cast<float*>(p);
}
inline std::int32_t* ints(void* p) {
  return static_cast<std::int32_t*>(p);
}

}  // namespace poros::bench
