// SPDX-License-Identifier: Apache-2.0
// Where a rank's cells run: its GPU, or a slot of the CPU.
#pragma once

#include <cstdint>
#include <string>

#include "base/json.hpp"

namespace poros {

struct Placement {
  std::string host;
  std::string gpu_token;        // value of CUDA_VISIBLE_DEVICES for the cells; empty: as it is
  std::string gpu_uuid;         // empty where the driver does not say, and on a CPU
  std::string gpu_type;         // name of the GPU, or the announced label of a CPU slot; empty: any
  int local_size = 1;           // ranks that share the host
  std::int64_t host_bytes = 0;  // host memory that the ranks may use together; 0: not known
  std::string in_use_by;        // others that use the GPU already, for people; not part of to_json
};

/// Chooses the GPU of this rank among those that CUDA_VISIBLE_DEVICES shows (tokens are kept as
/// they are, MIG ids too), else among all in PCI order, and binds the calling thread to the cores
/// of its NUMA node. Makes no CUDA context.
/// @throws Error(Fault::environment) when the host has fewer GPUs than ranks
[[nodiscard]] Placement place_rank(const std::string& device, int local_rank, int local_size);

[[nodiscard]] Json to_json(const Placement& placement);
[[nodiscard]] Placement placement_from_json(const Json& json);

/// Whether cells for hardware.gpu_name `wanted` may run there: "unknown" and slots without a label
/// take everything.
[[nodiscard]] bool fits_placement(const std::string& wanted, const Placement& placement);

}  // namespace poros
