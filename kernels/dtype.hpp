// SPDX-License-Identifier: Apache-2.0
// Element types of kernel operands and their conversions (round to nearest, ties to even).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace poros {

enum class DType : std::uint8_t { f32, bf16, f16 };

[[nodiscard]] constexpr std::size_t bytes_of(DType dtype) {
  return dtype == DType::f32 ? 4 : 2;
}

[[nodiscard]] constexpr const char* name_of(DType dtype) {
  return dtype == DType::f32 ? "f32" : dtype == DType::bf16 ? "bf16" : "f16";
}

/// Storage of one bfloat16 and one IEEE half. Plain bits: arithmetic is done in float.
struct Bf16 {
  std::uint16_t bits = 0;
};
struct F16 {
  std::uint16_t bits = 0;
};

[[nodiscard]] constexpr float to_float(float value) {
  return value;
}

[[nodiscard]] constexpr float to_float(Bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

[[nodiscard]] constexpr float to_float(F16 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000U) << 16;
  const std::uint32_t exponent = (value.bits >> 10) & 0x1FU;
  const std::uint32_t mantissa = value.bits & 0x3FFU;
  if (exponent == 0x1FU) return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
  // Zero and subnormals: the mantissa counts units of 2^-24, exact in float.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}

/// Nearest bfloat16, ties to even; NaN stays NaN (quiet), overflow becomes infinity.
[[nodiscard]] constexpr Bf16 to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40U;
  const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  return {static_cast<std::uint16_t>(is_nan ? quiet : rounded)};
}

/// Nearest half, ties to even; NaN stays NaN (quiet), overflow becomes infinity.
[[nodiscard]] constexpr F16 to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  std::uint32_t half = 0;
  if (magnitude > 0x7F800000U) {
    half = 0x7E00U;
  } else if (magnitude >= 0x477FF000U) {  // 65520 and above round to infinity
    half = 0x7C00U;
  } else if (magnitude >= 0x38800000U) {  // normal halves
    half = (magnitude + 0xFFFU + ((magnitude >> 13) & 1U) - (112U << 23)) >> 13;
  } else {
    // Subnormal halves: adding 0.5 leaves the value in units of 2^-24 in the low mantissa bits,
    // rounded by the addition itself.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    half = std::bit_cast<std::uint32_t>(shifted) - 0x3F000000U;
  }
  return {static_cast<std::uint16_t>(sign | half)};
}

/// Converts to the storage type T: float, Bf16 or F16.
template <typename T>
[[nodiscard]] constexpr T from_float(float value);
template <>
[[nodiscard]] constexpr float from_float<float>(float value) {
  return value;
}
template <>
[[nodiscard]] constexpr Bf16 from_float<Bf16>(float value) {
  return to_bf16(value);
}
template <>
[[nodiscard]] constexpr F16 from_float<F16>(float value) {
  return to_f16(value);
}

/// The value as it would be read back from storage of type T.
template <typename T>
[[nodiscard]] constexpr float rounded_to(float value) {
  return to_float(from_float<T>(value));
}

}  // namespace poros
