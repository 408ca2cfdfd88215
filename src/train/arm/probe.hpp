// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/json.hpp"

namespace poros {

/// Opens the GPU and measures what streaming depends on: {gpu, uuid, start_s,
/// host_to_device_gb_per_s, pinned_bytes, pinned_tried_bytes}. pinned_bytes is how much memory
/// could be page-locked, tried up to half of what the host has available and at most 16 GiB.
/// @throws Error(Fault::environment) without device code or GPU
[[nodiscard]] Json probe_gpu();

}  // namespace poros
