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
#include "cell/watchdog.hpp"

namespace poros {

/// How often to look, and how much of the time looking may take.
struct SamplerPace {
  double interval_s = 0.2;      // clocks, throttle reasons, temperature, power, memory
  double full_interval_s = 10;  // ECC, PCIe link and processes too
  double largest_part = 0.003;  // no look while the looks so far took more of the time than this
};

/// Takes a sample when its interval is over and its share of the time allows it, and a full one at
/// both ends. Without a driver library, without a GPU or for device cpu it does nothing, and the
/// summary is null.
class GpuSampler {
 public:
  /// @param visible value of CUDA_VISIBLE_DEVICES of the cell; its first token is the cell's GPU
  GpuSampler(const std::string& device, const std::string& visible, SamplerPace pace = {});

  /// To be called often; returns at once while nothing is due.
  void tick();

  /// To be told what the cell says of itself: the energy of the timed steps is the counter's
  /// difference from the beginning of phase `train` to the last step seen, with the steps between.
  void observe(CellEvent event, const CellProgress& progress);

  /// Takes a last sample. Clocks, power and temperature as min, median, max; energy (of the pass
  /// and of the timed steps) and ECC as differences; throttle reasons with the part of the samples
  /// that showed them; memory and processes of the device; what the sampling itself cost, in wall
  /// time and in CPU time of its thread.
  [[nodiscard]] Json summary();

  /// Flags for the record: "throttled" (by heat or a fault; not by the power limit), "shared_gpu".
  [[nodiscard]] std::vector<std::string> flags() const;

 private:
  class Cost;
  struct EnergyMark {
    double energy_j = 0, taken_s = 0;
    std::int64_t step = 0;
  };

  void take(Nvml::Detail detail);
  [[nodiscard]] bool is_affordable(double now_s) const;

  const Nvml* nvml_ = nullptr;
  const GpuInfo* gpu_ = nullptr;
  SamplerPace pace_;
  double started_s_, last_s_ = 0, last_full_s_ = 0, cost_s_ = 0, cost_cpu_s_ = 0;
  std::optional<EnergyMark> first_energy_, last_energy_;  // of the timed steps
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
