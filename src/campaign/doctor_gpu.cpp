// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>

#include "base/nvml.hpp"
#include "base/subprocess.hpp"
#include "campaign/doctor.hpp"

namespace poros {
namespace {

namespace fs = std::filesystem;
constexpr int kDriverOfCuda13 = 580;  // CUDA 13.x release notes: R580 is the least driver branch
constexpr int kLeastCompute = 80;     // flash attention and bf16 products
constexpr double kProbe_s = 120;

Finding gpu_row(std::string name, std::string value, Health health = Health::ok,
                std::string mend = "") {
  return {"GPU", std::move(name), std::move(value), health, std::move(mend)};
}

void examine_driver(const Nvml& nvml, std::vector<Finding>& findings) {
  const std::string version = nvml.driver_version();
  const int branch = std::atoi(version.c_str());
  Finding row = gpu_row("driver", fmt::format("{} (CUDA {})", version, nvml.cuda_version()));
  if (branch < kDriverOfCuda13) {
    row.health = Health::error;
    row.mend = fmt::format(
        "driver branch {} is older than R{}, which the CUDA 13.0 libraries of this build need: "
        "install NVIDIA driver {} or later",
        branch, kDriverOfCuda13, kDriverOfCuda13);
  }
  findings.push_back(row);
}

void examine_gpu(const Nvml& nvml, const GpuInfo& gpu, std::vector<Finding>& findings) {
  const std::string name = fmt::format("GPU {}", gpu.index);
  Finding row = gpu_row(name, fmt::format("{}, {:.1f} GB, {}", gpu.name,
                                          static_cast<double>(gpu.memory_bytes) * 1e-9, gpu.uuid));
  if (gpu.compute_major.has_value()) {
    const int compute = 10 * *gpu.compute_major + gpu.compute_minor.value_or(0);
    row.value += fmt::format(", compute capability {}.{}", compute / 10, compute % 10);
    if (compute < kLeastCompute) {
      row.health = Health::error;
      row.mend = "this trainer needs compute capability 8.0 (A100, RTX 30) or later";
    }
  }
  if (gpu.mig) row.value += ", split into MIG instances";
  findings.push_back(row);

  const GpuSample sample = nvml.sample(gpu);
  if (sample.pcie_generation.has_value() && sample.pcie_width.has_value()) {
    Finding link = gpu_row(
        name + " link",
        fmt::format("PCIe generation {} x{} now", *sample.pcie_generation, *sample.pcie_width));
    if (gpu.pcie_generation_max.has_value() && gpu.pcie_width_max.has_value()) {
      link.value += fmt::format(", x{} of generation {} at most", *gpu.pcie_width_max,
                                *gpu.pcie_generation_max);
      // The generation drops when a GPU idles; the width does not.
      if (*sample.pcie_width < *gpu.pcie_width_max) {
        link.health = Health::warn;
        link.mend =
            "fewer lanes than the card has: streaming is slower; reseat it or use another "
            "slot";
      }
    }
    findings.push_back(link);
  }
  if (sample.processes_known && !sample.processes.empty()) {
    findings.push_back(gpu_row(name + " in use by",
                               fmt::format("{} process{}", sample.processes.size(),
                                           sample.processes.size() == 1 ? "" : "es"),
                               Health::warn,
                               "timings beside other work are flagged; see nvidia-smi"));
  }
  if (sample.ecc_uncorrected.value_or(0) > 0) {
    findings.push_back(gpu_row(name + " memory errors",
                               fmt::format("{} uncorrected", *sample.ecc_uncorrected), Health::warn,
                               "results of this GPU can't be trusted until it was reset"));
  }
}

/// What poros-cell-cuda finds on the GPU: it makes a CUDA context, this program does not.
void probe(const DoctorOptions& options, std::vector<Finding>& findings) {
  fs::path program = options.paths.cell_program;
  program.concat("-cuda");
  std::error_code error;
  if (!fs::exists(program, error)) {
    findings.push_back(gpu_row("trainer for GPUs", "not built", Health::error,
                               "install a CUDA 13 toolkit and run scripts/bootstrap.sh"));
    return;
  }
  if (!options.measure) return;
  const ProcessResult result = run_process({program.string(), "probe", "--json"}, kProbe_s);
  Json json;
  if (result.exit_code == 0) {
    json = Json::parse(result.out, nullptr, false);
  }
  if (!json.is_object()) {
    const std::string said =
        result.timed_out ? fmt::format("no answer in {} s", kProbe_s) : result.err.substr(0, 400);
    findings.push_back(gpu_row("trainer for GPUs", "does not start: " + said, Health::error,
                               program.string() + " probe shows the whole message"));
    return;
  }
  findings.push_back(
      gpu_row("trainer for GPUs", fmt::format("starts in {:.1f} s", json.value("start_s", 0.0))));
  const double rate = json.value("host_to_device_gb_per_s", 0.0);
  findings.push_back(gpu_row("copy from pinned memory", fmt::format("{:.1f} GB/s", rate)));
  const auto pinned = json.value("pinned_bytes", std::uint64_t{0});
  const auto tried = json.value("pinned_tried_bytes", std::uint64_t{0});
  Finding row =
      gpu_row("pinnable memory", fmt::format("{:.1f} GB{}", static_cast<double>(pinned) * 1e-9,
                                             pinned == tried ? " (all that was tried)" : ""));
  if (pinned < tried) {
    row.health = Health::warn;
    row.mend =
        "the system refuses more; ulimit -l unlimited, or --ulimit memlock=-1 for a container";
  }
  findings.push_back(row);
}

}  // namespace

void examine_gpus(const DoctorOptions& options, std::vector<Finding>& findings) {
  const Nvml* nvml = Nvml::open();
  if (nvml == nullptr) {
    const bool there = has_nvidia_gpu();
    findings.push_back(gpu_row("driver", Nvml::why(), there ? Health::error : Health::note,
                               there ? "an NVIDIA GPU is there, its driver's library is not: "
                                       "install libnvidia-ml for the loaded driver"
                                     : "cells with device: cpu run here"));
    return;
  }
  examine_driver(*nvml, findings);
  for (const GpuInfo& gpu : nvml->gpus()) examine_gpu(*nvml, gpu, findings);
  if (nvml->gpus().empty()) {
    findings.push_back(gpu_row("GPUs", "none", Health::note, "cells with device: cpu run here"));
    return;
  }
  probe(options, findings);
}

}  // namespace poros
