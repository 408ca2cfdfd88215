// SPDX-License-Identifier: Apache-2.0
#include "plan/gpu_cards.hpp"

#include <array>
#include <cmath>

#include "spec/gpu_name.hpp"

namespace poros {
namespace {

// Matrix rates: 3090 and A100 from stas00/ml-engineering's MAMF table, H200 measured here, B300
// from the same table's B-series ratio to its nominal rate, 5090 the nominal rate, H100 and B200
// scaled by their nominal rates. Host rates: NVIDIA/nvbandwidth's README (Gen4 26) and 55 GB/s
// measured here on Gen5.
constexpr std::array kCards = {
    GpuCard{"RTX 3090", "RTX 3090", 24, 82, 65, 936, 25},
    GpuCard{"RTX 5090", "RTX 5090", 32, 170, 209, 1790, 52},
    GpuCard{"A100", "A100 40GB", 40, 108, 271, 1555, 26},
    GpuCard{"A100", "A100 80GB", 80, 108, 271, 2000, 26},
    GpuCard{"H100", "H100", 80, 132, 795, 3350, 55},
    GpuCard{"H200", "H200", 141, 132, 795, 4800, 55},
    GpuCard{"B200", "B200", 180, 148, 1740, 8000, 55},
    GpuCard{"B300", "B300", 288, 160, 1769, 8000, 55},
};

}  // namespace

std::span<const GpuCard> gpu_cards() {
  return kCards;
}

const GpuCard* find_gpu_card(const std::string& name, double vram_gb) {
  const GpuCard* found = nullptr;
  for (const GpuCard& card : kCards) {
    if (!is_same_gpu(card.name, name)) continue;
    const auto distance = [&](const GpuCard& other) {
      return std::abs(static_cast<double>(other.gigabytes) - vram_gb);
    };
    const bool nearer = found == nullptr || (vram_gb > 0 ? distance(card) < distance(*found)
                                                         : card.gigabytes > found->gigabytes);
    if (nearer) found = &card;
  }
  return found;
}

DeviceModel cuda_device_like(int multiprocessors) {
  DeviceModel device;
  device.cuda = true;
  device.name = "cuda";
  device.multiprocessors = multiprocessors;
  return device;
}

}  // namespace poros
