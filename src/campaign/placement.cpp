// SPDX-License-Identifier: Apache-2.0
#include "campaign/placement.hpp"

#include <charconv>
#include <cstdlib>
#include <string_view>
#include <vector>

#include <sched.h>

#include "base/files.hpp"
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

/// "0-3,8" as a mask.
cpu_set_t cpu_list(const std::string& text) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (const std::string& range : listed(text.substr(0, text.find('\n')))) {
    int first = 0, last = 0;
    const char* end = range.data() + range.size();
    const auto head = std::from_chars(range.data(), end, first);
    last = first;
    if (head.ptr != end) std::from_chars(head.ptr + 1, end, last);
    for (int cpu = first; cpu <= last && cpu < CPU_SETSIZE; ++cpu) CPU_SET(cpu, &mask);
  }
  return mask;
}

/// Keeps to the cores of a NUMA node, as far as this process may use them.
void bind_to_node(int node) {
  try {
    cpu_set_t cores =
        cpu_list(read_file("/sys/devices/system/node/node" + std::to_string(node) + "/cpulist"));
    cpu_set_t allowed, both;
    if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    CPU_AND(&both, &cores, &allowed);
    if (CPU_COUNT(&both) > 0) ::sched_setaffinity(0, sizeof both, &both);
  } catch (const Error&) {  // a kernel without NUMA nodes: nothing to bind to
  }
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
          json_get<std::int64_t>(json, "host_bytes", origin)};
}

bool fits_placement(const std::string& wanted, const Placement& placement) {
  if (wanted == "unknown" || placement.gpu_type.empty()) return true;
  return is_same_gpu(wanted, placement.gpu_type);
}

}  // namespace poros
