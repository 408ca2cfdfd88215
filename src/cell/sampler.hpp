// SPDX-License-Identifier: Apache-2.0
// Looks at the cell's GPU while a pass runs, from the driver's process: nothing is added to the
// process that is measured, and no CUDA context is made.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "base/nvml.hpp"

namespace poros {

/// Takes a sample at most once in `interval_s` and at the ends. Without a driver library, without a
/// GPU or for device cpu it does nothing, and the summary is null.
class GpuSampler {
 public:
  /// @param visible value of CUDA_VISIBLE_DEVICES of the cell; its first token is the cell's GPU
  GpuSampler(const std::string& device, const std::string& visible, double interval_s = 1.0);

  /// To be called often; returns at once while the interval is not over.
  void tick();

  /// Takes a last sample. Clocks, power and temperature as min, median, max; energy and ECC as
  /// differences over the pass; throttle reasons with the part of the samples that showed them;
  /// memory and processes of the device; what the sampling itself cost.
  [[nodiscard]] Json summary();

  /// Flags for the record: "throttled" (by heat or a fault; not by the power limit), "shared_gpu".
  [[nodiscard]] std::vector<std::string> flags() const;

 private:
  void take();

  const Nvml* nvml_ = nullptr;
  const GpuInfo* gpu_ = nullptr;
  double interval_s_, started_s_, last_s_ = 0, cost_s_ = 0;
  std::int64_t samples_ = 0, known_processes_ = 0;
  std::optional<GpuSample> first_, latest_;
  std::map<std::string, std::vector<double>> series_;
  std::map<std::string, std::int64_t> throttles_;
  std::set<int> before_;             // processes on the GPU before the cell began
  std::int64_t shared_samples_ = 0;  // samples in which one of those was still there
  std::uint64_t memory_peak_ = 0;
  std::string failure_;
};

}  // namespace poros
