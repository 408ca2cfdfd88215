// SPDX-License-Identifier: Apache-2.0
// `residency: auto`: where the base waits, by the memory that is free.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "plan/memory_plan.hpp"

namespace poros {

/// Device memory that a new arena can take [bytes]: on a GPU what neither this process nor another
/// holds, less a share for the driver; nullopt on the CPU, where memory is the host's.
[[nodiscard]] std::optional<std::uint64_t> free_device_bytes(const DeviceModel& device);

/// Resident where its plan fits into `free_bytes` and the spec's budget; else streamed with as many
/// blocks kept as fit. No bit of the result depends on it.
[[nodiscard]] ResidencySettings choose_residency(const BaseStore& base, const NumericalPlan& plan,
                                                 const std::vector<LoraPlace>& places,
                                                 const PorosSpec& poros,
                                                 std::optional<std::uint64_t> free_bytes);

}  // namespace poros
