// SPDX-License-Identifier: Apache-2.0
// Optimizer steps of one model in one residency, timed.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "kernel_trace.hpp"
#include "model/base_store.hpp"
#include "train/phase_clock.hpp"

namespace poros::bench {

inline constexpr double kMiB = 1048576.0;

struct Options {
  std::vector<std::string> models = {"0.5b"}, arms = {"resident", "streamed"};
  std::string configs = "configs/models", precision = "nf4";
  std::int64_t layers = 0, steps = 10, warmup = 3;
  std::int64_t seq_len = 512, batch = 1, accumulation = 8, rank = 16;
  std::int64_t block_size = 1, slots = 3, budget_mb = 0;
  std::string layer_inputs = "auto", accumulate = "block_major";
  bool no_prefetch = false, skip_ceilings = false, base_only = false, phases = false,
       profile = false;
  bool json = false, markdown = false;
  double dropout = 0, ceiling_s = 10;
  std::filesystem::path cache;

  [[nodiscard]] std::int64_t tokens() const { return batch * accumulation * seq_len; }
};

struct Result {
  std::string model, arm, bits;  // bits: hash of loss, norm and the flat buffers at the end
  double seconds = 0, least = 0, most = 0, queue_s = 0;  // of a step
  double loss = 0, norm = 0;
  double planned_mb = 0, peak_mb = 0, reserved_mb = 0, pinned_mb = 0;  // [2^20 bytes]
  double open_s = 0, load_s = 0, first_step_s = 0;  // base from the cache; executor; first step
  double stall_s = 0, copied_gb = 0;                // a step
  std::int64_t device_allocations = 0;              // during the timed steps
  std::array<double, kPhases> phase_s{};            // a step; with Options::phases

  TraceSummary trace;  // of `steps` further steps; with Options::profile

  [[nodiscard]] double start_s() const { return open_s + load_s + first_step_s; }
};

/// Matrix-unit work of one step [floating-point operations]: products with the base forward, again
/// (but for down), and for dX; the head both ways; LoRA's small ones.
[[nodiscard]] double operations(const Architecture& architecture, const Options& options);

/// @throws Error(Fault::run) when a loss or norm is not finite
[[nodiscard]] Result run_arm(const std::string& arm, const BaseStore& base, const Options& options,
                             const Stream& stream);

}  // namespace poros::bench
