// SPDX-License-Identifier: Apache-2.0
#include "campaign/placement.hpp"

#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

#include <hwloc.h>

#include "base/error.hpp"
#include "base/nvml.hpp"
#include "base/text.hpp"
#include "campaign/admission.hpp"
#include "campaign/attempt.hpp"
#include "campaign/slurm_rank.hpp"
#include "receipts/lease.hpp"

namespace poros {
namespace {

/// The parts between commas that are not empty.
std::vector<std::string> listed(std::string_view text) {
  std::vector<std::string> parts = split(text, ',');
  std::erase(parts, "");
  return parts;
}

/// Keeps this thread, and what it starts, to the cores of a NUMA node, as far as it may use them.
void bind_to_node(int node) {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return;
  const std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)> owner(
      topology, &hwloc_topology_destroy);
  if (hwloc_topology_load(topology) != 0) return;
  const hwloc_obj_t place =
      hwloc_get_numanode_obj_by_os_index(topology, static_cast<unsigned>(node));
  if (place == nullptr) return;  // the driver names a node that this container does not show
  const std::unique_ptr<hwloc_bitmap_s, decltype(&hwloc_bitmap_free)> cores(hwloc_bitmap_alloc(),
                                                                            &hwloc_bitmap_free);
  if (hwloc_get_cpubind(topology, cores.get(), HWLOC_CPUBIND_THREAD) != 0) return;
  hwloc_bitmap_and(cores.get(), cores.get(), place->cpuset);
  if (hwloc_bitmap_iszero(cores.get()) == 0) {
    hwloc_set_cpubind(topology, cores.get(), HWLOC_CPUBIND_THREAD);
  }
}

/// "2 other processes (pid 12, 15)" on a GPU that should be idle; empty: none, or not known.
std::string others_on(const Nvml& nvml, const GpuInfo& gpu) {
  const GpuSample sample = nvml.sample(gpu);
  if (!sample.processes_known || sample.processes.empty()) return {};
  std::vector<std::string> pids;
  for (const GpuProcess& process : sample.processes) pids.push_back(std::to_string(process.pid));
  return fmt::format("{} other process{} (pid {})", pids.size(), pids.size() == 1 ? "" : "es",
                     fmt::join(pids, ", "));
}

}  // namespace

Placement place_rank(const std::string& device, int local_rank, int local_size) {
  Placement placement;
  placement.host = this_process({}, {}).host;
  placement.local_size = local_size;
  placement.host_bytes = usable_host_bytes();
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  std::vector<std::string> tokens;
  if (device == "cpu") {
    placement.gpu_type = announced_gpu_type();
    if (visible != nullptr) tokens = listed(visible);
    const auto own = static_cast<std::size_t>(local_rank);
    if (own < tokens.size()) placement.gpu_token = tokens[own];  // a name for the slot, no more
    return placement;
  }
  const Nvml* nvml = Nvml::open();
  if (visible != nullptr) {
    tokens = listed(visible);
  } else if (nvml != nullptr) {
    for (const GpuInfo& gpu : nvml->gpus()) tokens.push_back(gpu.uuid);
  }
  if (tokens.empty()) return placement;  // the cells say that there is no GPU
  // One token in every rank: the launcher has given each its own.
  const auto index = static_cast<std::size_t>(tokens.size() == 1 ? 0 : local_rank);
  if (index >= tokens.size()) {
    fail(Fault::environment, "{}: {} ranks, but only {} GPUs are visible; start one rank a GPU",
         placement.host, local_size, tokens.size());
  }
  placement.gpu_token = tokens[index];
  const GpuInfo* gpu = nvml == nullptr ? nullptr : nvml->resolve(placement.gpu_token);
  if (gpu == nullptr) {
    placement.gpu_type = announced_gpu_type();
    return placement;
  }
  const bool instance = placement.gpu_token.rfind("MIG-", 0) == 0;
  placement.gpu_uuid = instance ? placement.gpu_token : gpu->uuid;
  placement.gpu_type = gpu->name;
  if (gpu->numa_node) bind_to_node(*gpu->numa_node);
  placement.in_use_by = others_on(*nvml, *gpu);
  return placement;
}

Json to_json(const Placement& placement) {
  return {{"host", placement.host},
          {"gpu_token", placement.gpu_token},
          {"gpu_uuid", placement.gpu_uuid},
          {"gpu_type", placement.gpu_type},
          {"local_size", placement.local_size},
          {"host_bytes", placement.host_bytes}};
}

Placement placement_from_json(const Json& json) {
  const std::string origin = "placement of a rank";
  return {json_get<std::string>(json, "host", origin),
          json_get<std::string>(json, "gpu_token", origin),
          json_get<std::string>(json, "gpu_uuid", origin),
          json_get<std::string>(json, "gpu_type", origin),
          json_get<int>(json, "local_size", origin),
          json_get<std::int64_t>(json, "host_bytes", origin),
          {}};
}

bool fits_placement(const std::string& wanted, const Placement& placement) {
  if (wanted == "unknown" || placement.gpu_type.empty()) return true;
  return is_same_gpu(wanted, placement.gpu_type);
}

}  // namespace poros
