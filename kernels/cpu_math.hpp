// SPDX-License-Identifier: Apache-2.0
// Arithmetic of the CPU kernels. One rule: the same bits on every instruction set. So exponentials
// are written out here (the C library picks other code on other CPUs), sums run in a fixed number
// of lanes, and nothing is contracted (-ffp-contract=off). Internal to kernels/.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/dtype.hpp"

// A loop function compiled for several instruction sets; the best one is taken when the program
// starts. POROS_KERNEL_SINGLE_ISA (tests) compiles only for the compiler's own flags.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(POROS_KERNEL_SINGLE_ISA)
#define POROS_KERNEL_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define POROS_KERNEL_CLONES
#endif
#define POROS_KERNEL_INLINE inline __attribute__((always_inline))

namespace poros::cpu {

/// Partial sums run side by side in this many lanes, element c in lane c % kLanes.
inline constexpr int kLanes = 32;

/// Sum of the lanes by halving; overwrites them.
template <typename Number>
POROS_KERNEL_INLINE Number sum_lanes(Number (&lanes)[kLanes]) {
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) lanes[l] += lanes[l + width];
  }
  return lanes[0];
}

/// Largest lane; NaN is passed over.
POROS_KERNEL_INLINE float max_lanes(const float (&lanes)[kLanes]) {
  float largest = lanes[0];
  for (int l = 1; l < kLanes; ++l) largest = lanes[l] > largest ? lanes[l] : largest;
  return largest;
}

/// e^x, error below 2 ulp; 0 below -104, infinity above 88.73, NaN for NaN. Cody-Waite reduction by
/// ln 2 in two parts, then the minimax polynomial of Cephes' expf (S. Moshier).
POROS_KERNEL_INLINE float exp_f32(float x) {
  constexpr float kRounder = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  float limited = x < -106.0F ? -106.0F : x;
  limited = limited > 89.0F ? 89.0F : limited;
  const float shifted = limited * 1.44269504088896341F + kRounder;
  const float n = shifted - kRounder;
  float r = limited - n * 0.693359375F;
  r = r - n * -2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  // 2^n in two factors, so that results below the normal range are still right.
  const auto k = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(shifted) - 0x4B400000U);
  const std::int32_t half = k >> 1;
  const float low = std::bit_cast<float>(static_cast<std::uint32_t>(half + 127) << 23);
  const float high = std::bit_cast<float>(
      (static_cast<std::uint32_t>(k) - static_cast<std::uint32_t>(half) + 127U) << 23);
  return p * low * high;
}

/// tanh x, error below 2 ulp: an odd polynomial near 0 (Cephes' tanhf), 1 - 2/(e^2x + 1) elsewhere.
POROS_KERNEL_INLINE float tanh_f32(float x) {
  const float magnitude = x < 0.0F ? -x : x;
  const float far = 1.0F - 2.0F / (exp_f32(2.0F * magnitude) + 1.0F);
  const float signed_far = x < 0.0F ? -far : far;
  const float z = x * x;
  float p = -5.70498872745e-3F;
  p = p * z + 2.06390887954e-2F;
  p = p * z - 5.37397155531e-2F;
  p = p * z + 1.33314422036e-1F;
  p = p * z - 3.33332819422e-1F;
  const float near = p * z * x + x;
  return magnitude < 0.625F ? near : signed_far;
}

POROS_KERNEL_INLINE float sigmoid_f32(float x) {
  return 1.0F / (1.0F + exp_f32(-x));
}

}  // namespace poros::cpu
