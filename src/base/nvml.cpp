// SPDX-License-Identifier: Apache-2.0
// Declarations follow NVML's documented binary interface (docs.nvidia.com/deploy/nvml-api): the
// header belongs to the CUDA toolkit, which a login node has not.
#include "base/nvml.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <memory>

#include <dlfcn.h>
#include <fmt/format.h>

#include "base/error.hpp"

namespace poros {
namespace {

using Device = void*;
using Status = int;
constexpr Status kSuccess = 0, kInsufficientSize = 7;

struct PciInfo {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};
struct MemoryInfo {
  unsigned long long total, free, used;
};
struct ProcessInfo {
  unsigned pid;
  unsigned long long used_memory;
  unsigned gpu_instance, compute_instance;
};
constexpr unsigned long long kNotAvailable = ~0ULL;

}  // namespace

struct Nvml::Library {
  Status (*init)() = nullptr;
  const char* (*error_text)(Status) = nullptr;
  Status (*driver_version)(char*, unsigned) = nullptr;
  Status (*cuda_version)(int*) = nullptr;
  Status (*count)(unsigned*) = nullptr;
  Status (*by_index)(unsigned, Device*) = nullptr;
  Status (*uuid)(Device, char*, unsigned) = nullptr;
  Status (*name)(Device, char*, unsigned) = nullptr;
  Status (*pci)(Device, PciInfo*) = nullptr;
  Status (*memory)(Device, MemoryInfo*) = nullptr;
  // The rest may be missing from an old library.
  Status (*compute)(Device, int*, int*) = nullptr;
  Status (*clock)(Device, int, unsigned*) = nullptr;
  Status (*throttle)(Device, unsigned long long*) = nullptr;
  Status (*temperature)(Device, int, unsigned*) = nullptr;
  Status (*power)(Device, unsigned*) = nullptr;
  Status (*energy)(Device, unsigned long long*) = nullptr;
  Status (*ecc)(Device, int, int, unsigned long long*) = nullptr;
  Status (*link_generation)(Device, unsigned*) = nullptr;
  Status (*link_width)(Device, unsigned*) = nullptr;
  Status (*link_generation_max)(Device, unsigned*) = nullptr;
  Status (*link_width_max)(Device, unsigned*) = nullptr;
  Status (*mig_mode)(Device, unsigned*, unsigned*) = nullptr;
  Status (*processes)(Device, unsigned*, ProcessInfo*) = nullptr;
  Status (*by_uuid)(const char*, Device*) = nullptr;
  Status (*mig_parent)(Device, Device*) = nullptr;

  std::vector<Device> devices;  // by index in gpus_
};

namespace {

template <typename Function>
bool find(void* handle, Function& function, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    function = reinterpret_cast<Function>(::dlsym(handle, name));
    if (function != nullptr) return true;
  }
  return false;
}

/// What a call with one result gives, or nothing.
template <typename Value, typename Function, typename... Arguments>
std::optional<Value> ask(Function function, Device device, Arguments... arguments) {
  Value value{};
  if (function == nullptr || function(device, arguments..., &value) != kSuccess) return {};
  return value;
}

std::optional<double> as_double(std::optional<unsigned> value, double factor = 1.0) {
  if (!value.has_value()) return {};
  return factor * static_cast<double>(*value);
}

std::optional<int> as_int(std::optional<unsigned> value) {
  if (!value.has_value()) return {};
  return static_cast<int>(*value);
}

/// The kernel's answer for a PCI address; the driver writes eight hex digits of domain, it four.
std::optional<int> numa_node_of(std::string bus_id) {
  std::transform(bus_id.begin(), bus_id.end(), bus_id.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (bus_id.size() > 12) bus_id.erase(0, bus_id.size() - 12);
  std::ifstream file("/sys/bus/pci/devices/" + bus_id + "/numa_node");
  int node = -1;
  if (!(file >> node) || node < 0) return {};
  return node;
}

struct Opened {
  std::unique_ptr<Nvml> nvml;
  std::string why;
};

Opened open_library() {
  const char* named = std::getenv("POROS_NVML_LIBRARY");
  const std::string file = named != nullptr && *named != '\0' ? named : "libnvidia-ml.so.1";
  void* handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return {nullptr, fmt::format("{} can't be opened: no NVIDIA driver on this machine", file)};
  }
  static Nvml::Library library;
  const bool whole = find(handle, library.init, {"nvmlInit_v2"}) &&
                     find(handle, library.error_text, {"nvmlErrorString"}) &&
                     find(handle, library.driver_version, {"nvmlSystemGetDriverVersion"}) &&
                     find(handle, library.count, {"nvmlDeviceGetCount_v2"}) &&
                     find(handle, library.by_index, {"nvmlDeviceGetHandleByIndex_v2"}) &&
                     find(handle, library.uuid, {"nvmlDeviceGetUUID"}) &&
                     find(handle, library.name, {"nvmlDeviceGetName"}) &&
                     find(handle, library.pci, {"nvmlDeviceGetPciInfo_v3"}) &&
                     find(handle, library.memory, {"nvmlDeviceGetMemoryInfo"});
  if (!whole) return {nullptr, file + " lacks functions that every driver since 2019 has"};
  find(handle, library.cuda_version, {"nvmlSystemGetCudaDriverVersion_v2"});
  find(handle, library.compute, {"nvmlDeviceGetCudaComputeCapability"});
  find(handle, library.clock, {"nvmlDeviceGetClockInfo"});
  find(handle, library.throttle,
       {"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"});
  find(handle, library.temperature, {"nvmlDeviceGetTemperature"});
  find(handle, library.power, {"nvmlDeviceGetPowerUsage"});
  find(handle, library.energy, {"nvmlDeviceGetTotalEnergyConsumption"});
  find(handle, library.ecc, {"nvmlDeviceGetTotalEccErrors"});
  find(handle, library.link_generation, {"nvmlDeviceGetCurrPcieLinkGeneration"});
  find(handle, library.link_width, {"nvmlDeviceGetCurrPcieLinkWidth"});
  find(handle, library.link_generation_max, {"nvmlDeviceGetMaxPcieLinkGeneration"});
  find(handle, library.link_width_max, {"nvmlDeviceGetMaxPcieLinkWidth"});
  find(handle, library.mig_mode, {"nvmlDeviceGetMigMode"});
  find(handle, library.processes, {"nvmlDeviceGetComputeRunningProcesses_v3"});
  find(handle, library.by_uuid, {"nvmlDeviceGetHandleByUUID"});
  find(handle, library.mig_parent, {"nvmlDeviceGetDeviceHandleFromMigDeviceHandle"});
  const Status status = library.init();
  if (status != kSuccess) {
    return {nullptr, fmt::format("{}: {}", file, library.error_text(status))};
  }
  try {
    return {std::make_unique<Nvml>(library), ""};
  } catch (const Error& error) {
    return {nullptr, error.what()};
  }
}

const Opened& opened() {
  static const Opened once = open_library();
  return once;
}

GpuInfo describe(const Nvml::Library& library, Device device, int index) {
  GpuInfo gpu;
  gpu.index = index;
  std::array<char, 96> text{};
  if (library.uuid(device, text.data(), text.size()) == kSuccess) gpu.uuid = text.data();
  if (library.name(device, text.data(), text.size()) == kSuccess) gpu.name = text.data();
  if (const auto pci = ask<PciInfo>(library.pci, device)) gpu.pci_bus_id = pci->bus_id;
  if (const auto memory = ask<MemoryInfo>(library.memory, device)) gpu.memory_bytes = memory->total;
  int major = 0, minor = 0;
  if (library.compute != nullptr && library.compute(device, &major, &minor) == kSuccess) {
    gpu.compute_major = major;
    gpu.compute_minor = minor;
  }
  gpu.numa_node = numa_node_of(gpu.pci_bus_id);
  gpu.pcie_generation_max = as_int(ask<unsigned>(library.link_generation_max, device));
  gpu.pcie_width_max = as_int(ask<unsigned>(library.link_width_max, device));
  unsigned current = 0, pending = 0;
  gpu.mig = library.mig_mode != nullptr &&
            library.mig_mode(device, &current, &pending) == kSuccess && current == 1;
  return gpu;
}

}  // namespace

std::vector<std::string> throttle_names(std::uint64_t reasons) {
  // NVML's nvmlClocksEventReasons; idle (1), application clocks (2), sync boost (16) and display
  // clocks (256) are no fault of the run's conditions.
  static constexpr std::array<std::pair<std::uint64_t, const char*>, 5> kNames{
      {{0x4, "power_cap"},
       {0x8, "hardware_slowdown"},
       {0x20, "thermal"},
       {0x40, "hardware_thermal"},
       {0x80, "power_brake"}}};
  std::vector<std::string> names;
  for (const auto& [bit, name] : kNames) {
    if ((reasons & bit) != 0) names.emplace_back(name);
  }
  return names;
}

const Nvml* Nvml::open() {
  return opened().nvml.get();
}
std::string Nvml::why() {
  return opened().why;
}

Nvml::Nvml(const Library& library) : library_(&library) {
  unsigned count = 0;
  const Status status = library.count(&count);
  if (status != kSuccess) {
    fail(Fault::run, "the NVIDIA driver does not count its GPUs: {}", library.error_text(status));
  }
  auto& devices = const_cast<Library&>(library).devices;
  devices.clear();
  for (unsigned index = 0; index < count; ++index) {
    Device device = nullptr;
    // A GPU that fell off the bus refuses its handle; the others are still there.
    if (library.by_index(index, &device) != kSuccess) continue;
    devices.push_back(device);
    gpus_.push_back(describe(library, device, static_cast<int>(index)));
  }
}

std::string Nvml::driver_version() const {
  std::array<char, 96> text{};
  if (library_->driver_version(text.data(), text.size()) != kSuccess) return "";
  return text.data();
}

std::string Nvml::cuda_version() const {
  int version = 0;
  if (library_->cuda_version == nullptr || library_->cuda_version(&version) != kSuccess) return "";
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

const std::vector<GpuInfo>& Nvml::gpus() const {
  return gpus_;
}

const GpuInfo* Nvml::resolve(const std::string& token) const {
  int index = -1;
  const char* const end = token.data() + token.size();
  const auto [stop, error] = std::from_chars(token.data(), end, index);
  if (error == std::errc{} && stop == end) {
    const auto found = std::find_if(gpus_.begin(), gpus_.end(),
                                    [&](const GpuInfo& gpu) { return gpu.index == index; });
    return found == gpus_.end() ? nullptr : &*found;
  }
  if (token.rfind("MIG-", 0) == 0) {
    Device instance = nullptr, parent = nullptr;
    if (library_->by_uuid == nullptr || library_->mig_parent == nullptr ||
        library_->by_uuid(token.c_str(), &instance) != kSuccess ||
        library_->mig_parent(instance, &parent) != kSuccess) {
      return nullptr;
    }
    const auto at = std::find(library_->devices.begin(), library_->devices.end(), parent);
    return at == library_->devices.end()
               ? nullptr
               : &gpus_[static_cast<std::size_t>(at - library_->devices.begin())];
  }
  const GpuInfo* match = nullptr;
  for (const GpuInfo& gpu : gpus_) {
    if (token.empty() || gpu.uuid.rfind(token, 0) != 0) continue;
    if (match != nullptr) return nullptr;
    match = &gpu;
  }
  return match;
}

std::optional<double> Nvml::energy_j(const GpuInfo& gpu) const {
  const auto at = static_cast<std::size_t>(&gpu - gpus_.data());
  if (at >= library_->devices.size()) return {};
  const auto energy = ask<unsigned long long>(library_->energy, library_->devices[at]);
  if (!energy) return {};
  return 1e-3 * static_cast<double>(*energy);
}

GpuSample Nvml::sample(const GpuInfo& gpu, Detail detail) const {
  const auto at = static_cast<std::size_t>(&gpu - gpus_.data());
  if (at >= library_->devices.size()) return {};
  const Device device = library_->devices[at];
  constexpr int kSmClock = 1, kMemoryClock = 2, kCore = 0, kVolatile = 0;
  GpuSample sample;
  sample.sm_clock_mhz = as_double(ask<unsigned>(library_->clock, device, kSmClock));
  sample.memory_clock_mhz = as_double(ask<unsigned>(library_->clock, device, kMemoryClock));
  sample.throttle_reasons = ask<unsigned long long>(library_->throttle, device);
  sample.temperature_c = as_double(ask<unsigned>(library_->temperature, device, kCore));
  sample.power_w = as_double(ask<unsigned>(library_->power, device), 1e-3);
  sample.energy_j = energy_j(gpu);
  if (const auto memory = ask<MemoryInfo>(library_->memory, device)) {
    sample.memory_used_bytes = memory->used;
  }
  if (detail == Detail::brief) return sample;
  sample.ecc_corrected = ask<unsigned long long>(library_->ecc, device, 0, kVolatile);
  sample.ecc_uncorrected = ask<unsigned long long>(library_->ecc, device, 1, kVolatile);
  sample.pcie_generation = as_int(ask<unsigned>(library_->link_generation, device));
  sample.pcie_width = as_int(ask<unsigned>(library_->link_width, device));
  if (library_->processes == nullptr) return sample;
  std::vector<ProcessInfo> processes(32);
  for (int attempt = 0; attempt < 3; ++attempt) {
    auto count = static_cast<unsigned>(processes.size());
    const Status status = library_->processes(device, &count, processes.data());
    if (status == kInsufficientSize) {
      processes.resize(static_cast<std::size_t>(count) + 16);
      continue;
    }
    if (status != kSuccess) break;
    sample.processes_known = true;
    for (unsigned i = 0; i < count; ++i) {
      GpuProcess process{static_cast<int>(processes[i].pid), {}};
      if (processes[i].used_memory != kNotAvailable)
        process.memory_bytes = processes[i].used_memory;
      sample.processes.push_back(process);
    }
    break;
  }
  return sample;
}

}  // namespace poros
