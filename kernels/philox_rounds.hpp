// SPDX-License-Identifier: Apache-2.0
// The rounds of Philox4x32-10 on four words, for host and device code alike. Internal to kernels/.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define POROS_PHILOX_CALL __host__ __device__ __forceinline__
#else
#define POROS_PHILOX_CALL inline __attribute__((always_inline))
#endif

namespace poros {

/// Multipliers and key increments as published.
POROS_PHILOX_CALL void philox_rounds(std::uint32_t& c0, std::uint32_t& c1, std::uint32_t& c2,
                                     std::uint32_t& c3, std::uint32_t k0, std::uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53U} * c0;
    const std::uint64_t b = std::uint64_t{0xCD9E8D57U} * c2;
    const auto new0 = static_cast<std::uint32_t>(b >> 32) ^ c1 ^ k0;
    const auto new2 = static_cast<std::uint32_t>(a >> 32) ^ c3 ^ k1;
    c1 = static_cast<std::uint32_t>(b);
    c3 = static_cast<std::uint32_t>(a);
    c0 = new0;
    c2 = new2;
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
}

/// Fourth counter word of a dropout mask (philox.hpp).
POROS_PHILOX_CALL std::uint32_t dropout_place(std::uint32_t micro_batch, std::uint32_t layer,
                                              std::uint32_t site) {
  return micro_batch << 20 | layer << 12 | site;
}

/// Smallest word that keeps its element: p * 2^32, rounded down.
POROS_PHILOX_CALL std::uint32_t dropout_threshold(float p) {
  return static_cast<std::uint32_t>(static_cast<double>(p) * 4294967296.0);
}

}  // namespace poros
