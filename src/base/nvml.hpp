// SPDX-License-Identifier: Apache-2.0
// What the NVIDIA driver says of its GPUs, through its management library (NVML). The library is
// opened when it is first asked for and never linked: a machine without it has no GPUs, and no
// CUDA context is ever made here. Missing is missing: what the driver does not say is empty.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace poros {

/// A GPU as the driver lists it (order of the PCI bus, whatever CUDA_VISIBLE_DEVICES says).
struct GpuInfo {
  int index = 0;
  std::string uuid;        // "GPU-8a1f..."
  std::string name;        // "NVIDIA H200"
  std::string pci_bus_id;  // "00000000:3B:00.0"
  std::uint64_t memory_bytes = 0;
  std::optional<int> compute_major, compute_minor;
  std::optional<int> numa_node;  // empty: the kernel does not say
  std::optional<int> pcie_generation_max, pcie_width_max;
  bool mig = false;  // split into instances: their tokens are MIG-<uuid>
};

struct GpuProcess {
  int pid = 0;  // in the driver's pid namespace
  std::optional<std::uint64_t> memory_bytes;
};

/// One look at a GPU. Taking it costs some ten microseconds to a few milliseconds, by driver.
struct GpuSample {
  std::optional<double> sm_clock_mhz, memory_clock_mhz;
  std::optional<std::uint64_t> throttle_reasons;  // bits, see throttle_names()
  std::optional<double> temperature_c, power_w;
  std::optional<double> energy_j;  // since the driver was loaded
  std::optional<std::uint64_t> memory_used_bytes;
  std::optional<std::uint64_t> ecc_corrected, ecc_uncorrected;  // since the driver was loaded
  std::optional<int> pcie_generation, pcie_width;               // as they are at this moment
  std::vector<GpuProcess> processes;
  bool processes_known = false;
};

/// Names of the throttle bits that slow a GPU down: power_cap, thermal, hardware_slowdown, ... Idle
/// and clocks that an application asked for are not among them.
[[nodiscard]] std::vector<std::string> throttle_names(std::uint64_t reasons);

/// The opened library. All functions are safe to call from several threads.
class Nvml {
 public:
  /// The one library of this process; null where there is none or it refuses, and then `why()`
  /// says what is wrong. POROS_NVML_LIBRARY names another file (default libnvidia-ml.so.1).
  [[nodiscard]] static const Nvml* open();
  [[nodiscard]] static std::string why();

  [[nodiscard]] std::string driver_version() const;  // "580.159.04"
  [[nodiscard]] std::string cuda_version() const;    // what the driver supports: "13.0"

  /// GPUs in PCI order. @throws Error(Fault::run) when the driver stops answering
  [[nodiscard]] const std::vector<GpuInfo>& gpus() const;

  /// What CUDA_VISIBLE_DEVICES' token means: an index in PCI order, a UUID or an unambiguous start
  /// of one ("GPU-8a1"); a MIG token gives its parent GPU. Null: no such GPU.
  [[nodiscard]] const GpuInfo* resolve(const std::string& token) const;

  /// What a look asks for: `brief` leaves out ECC counters, PCIe link and processes, which rarely
  /// change and cost the driver most.
  enum class Detail { brief, full };

  /// @param gpu of gpus() or resolve(), not a copy
  [[nodiscard]] GpuSample sample(const GpuInfo& gpu, Detail detail = Detail::full) const;

  /// The energy counter alone [J since the driver was loaded].
  [[nodiscard]] std::optional<double> energy_j(const GpuInfo& gpu) const;

  struct Library;  // the functions, nvml.cpp
  explicit Nvml(const Library& library);

 private:
  const Library* library_;
  std::vector<GpuInfo> gpus_;
};

}  // namespace poros
