// SPDX-License-Identifier: Apache-2.0
// GPUs that need not be here: what estimates are made from.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "plan/numerical_plan.hpp"

namespace poros {

struct GpuCard {
  const char* name;         // as hardware.gpu_name is matched
  const char* shown;        // with its memory, where there are several
  std::uint64_t gigabytes;  // [10^9 bytes] as its maker sells it
  int multiprocessors;      // flash attention's temporaries depend on them
  double bf16_tflops;       // dense bf16 matrix products, as measured with large shapes
  double memory_gb_s;       // of its own memory
  double host_gb_s;         // from pinned host memory
  [[nodiscard]] std::uint64_t bytes() const { return gigabytes * 1'000'000'000; }
};

/// Kept free for the driver's context and libraries.
inline constexpr std::uint64_t kDriverBytes = 1'000'000'000;

[[nodiscard]] std::span<const GpuCard> gpu_cards();

/// The card of that name; where it comes with several sizes, the one nearest to `vram_gb` (0: the
/// largest). nullptr for a GPU that the table does not have.
[[nodiscard]] const GpuCard* find_gpu_card(const std::string& name, double vram_gb);

/// A device to plan for.
[[nodiscard]] DeviceModel cuda_device_like(int multiprocessors);

}  // namespace poros
