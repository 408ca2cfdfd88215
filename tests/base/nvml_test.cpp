// SPDX-License-Identifier: Apache-2.0
// The library is opened once a process: each case looks at it in a child.
#include "base/nvml.hpp"

#include <cstdlib>
#include <functional>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace poros {
namespace {

constexpr const char* kTwo =
    "GPU-8a1f0000-0000-0000-0000-000000000001,NVIDIA Fake A100,40960;"
    "GPU-8b220000-0000-0000-0000-000000000002,NVIDIA Fake B300,294912";

/// True when `holds` is so in a process whose management library shows `gpus`.
bool in_child(const char* library, const char* gpus, const std::function<bool()>& holds) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("POROS_NVML_LIBRARY", library, 1);
    ::setenv("FAKE_NVML_GPUS", gpus, 1);
    ::_exit(holds() ? 0 : 1);
  }
  int status = 1;
  return ::waitpid(child, &status, 0) == child && status == 0;
}

TEST(Nvml, ListsGpusAsTheDriverNamesThem) {
  EXPECT_TRUE(in_child(FAKE_NVML, kTwo, [] {
    const Nvml* nvml = Nvml::open();
    if (nvml == nullptr || nvml->gpus().size() != 2) return false;
    const GpuInfo& gpu = nvml->gpus()[1];
    return nvml->driver_version() == "580.00.01" && nvml->cuda_version() == "13.0" &&
           gpu.index == 1 && gpu.name == "NVIDIA Fake B300" &&
           gpu.uuid == "GPU-8b220000-0000-0000-0000-000000000002" &&
           gpu.pci_bus_id == "0000FA4E:02:00.0" && gpu.memory_bytes == 294912ULL * 1024 * 1024 &&
           gpu.compute_major == 9 && !gpu.numa_node.has_value() &&
           !gpu.pcie_width_max.has_value() && !gpu.mig;
  }));
}

TEST(Nvml, ResolvesTokensOfCudaVisibleDevices) {
  EXPECT_TRUE(in_child(FAKE_NVML, kTwo, [] {
    const Nvml& nvml = *Nvml::open();
    return nvml.resolve("0") == &nvml.gpus()[0] && nvml.resolve("1") == &nvml.gpus()[1] &&
           nvml.resolve("2") == nullptr && nvml.resolve("-1") == nullptr &&
           nvml.resolve("GPU-8b") == &nvml.gpus()[1] && nvml.resolve("GPU-8") == nullptr &&
           nvml.resolve("") == nullptr && nvml.resolve("1x") == nullptr &&
           nvml.resolve("MIG-1234") == nullptr;
  }));
}

TEST(Nvml, SamplesWhatTheDriverSaysAndLeavesTheRestEmpty) {
  ::setenv("FAKE_NVML_BUSY", "4242", 1);
  ::setenv("FAKE_NVML_THROTTLE", "0x25", 1);
  EXPECT_TRUE(in_child(FAKE_NVML, kTwo, [] {
    const Nvml& nvml = *Nvml::open();
    const GpuSample sample = nvml.sample(nvml.gpus()[0]);
    return sample.sm_clock_mhz == 1980 && sample.memory_clock_mhz == 3201 &&
           sample.power_w == 500 && sample.energy_j > 0 && sample.temperature_c == 41 &&
           sample.throttle_reasons == 0x25U &&
           throttle_names(0x25) == std::vector<std::string>{"power_cap", "thermal"} &&
           sample.memory_used_bytes == 600ULL << 20 && sample.pcie_generation == 5 &&
           !sample.ecc_corrected.has_value() && sample.processes_known &&
           sample.processes.size() == 1 && sample.processes[0].pid == 4242 &&
           sample.processes[0].memory_bytes == 512ULL << 20;
  }));
  ::unsetenv("FAKE_NVML_BUSY");
  ::unsetenv("FAKE_NVML_THROTTLE");
}

TEST(Nvml, SaysWhyThereIsNone) {
  EXPECT_TRUE(in_child("/nonexistent.so", "", [] {
    return Nvml::open() == nullptr && Nvml::why().find("/nonexistent.so") != std::string::npos;
  }));
  ::setenv("FAKE_NVML_FAIL", "1", 1);
  EXPECT_TRUE(in_child(FAKE_NVML, kTwo, [] {
    return Nvml::open() == nullptr && Nvml::why().find("Driver Not Loaded") != std::string::npos;
  }));
  ::unsetenv("FAKE_NVML_FAIL");
  // Idle, application clocks, sync boost and display clocks say nothing against a run.
  EXPECT_TRUE(throttle_names(0x1 | 0x2 | 0x10 | 0x100).empty());
}

}  // namespace
}  // namespace poros
