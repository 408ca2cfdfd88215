// SPDX-License-Identifier: Apache-2.0
#include "train/arm/residency_choice.hpp"

#include <algorithm>

#include "base/nvml.hpp"
#include "train/device.hpp"

namespace poros {
namespace {

constexpr double kShare = 0.92;  // of the free memory; the rest is the driver's and cublasLt's

}  // namespace

std::optional<std::uint64_t> free_device_bytes(const DeviceModel& device) {
  if (!device.cuda) return std::nullopt;
  const CudaFacts facts = cuda_device().facts();
  std::uint64_t bytes = facts.total_bytes;
  const Nvml* nvml = Nvml::open();
  const GpuInfo* gpu = nvml == nullptr ? nullptr : nvml->resolve(facts.uuid);
  if (gpu != nullptr) {
    // What this process holds already (its context) is among the used.
    const std::uint64_t used = nvml->sample(*gpu).memory_used_bytes.value_or(0);
    bytes -= std::min(bytes, used);
  }
  return static_cast<std::uint64_t>(kShare * static_cast<double>(bytes));
}

ResidencySettings choose_residency(const BaseStore& base, const NumericalPlan& plan,
                                   const std::vector<LoraPlace>& places, const PorosSpec& poros,
                                   std::optional<std::uint64_t> free_bytes) {
  std::optional<std::uint64_t> limit = free_bytes;
  if (poros.vram_budget_mb) {
    const auto budget = static_cast<std::uint64_t>(*poros.vram_budget_mb) << 20;
    limit = limit ? std::min(*limit, budget) : budget;
  }
  const ResidencySettings resident = residency_settings("resident", poros);
  if (!limit || make_memory_plan(base, plan, places, resident).device_bytes() <= *limit) {
    return resident;
  }
  PorosSpec partial = poros;
  partial.vram_budget_mb = std::max<std::int64_t>(1, static_cast<std::int64_t>(*limit >> 20));
  return residency_settings("poros", partial);
}

}  // namespace poros
