// SPDX-License-Identifier: Apache-2.0
// The bitwise gate: training runs that keep the base in different ways are compared bit by bit
// after each step. The same code serves the CPU (a small model) and a GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "executor_fixture.hpp"
#include "gate_cover.hpp"

namespace poros {

/// How large the runs are.
struct GateScale {
  std::int64_t layers = 0, hidden = 0, intermediate = 0, heads = 0, kv_heads = 0, vocab = 0;
  std::int64_t short_seq_len = 0, long_seq_len = 0;
  std::int64_t steps = 0, rank = 0;
  bool cuda = false;
  std::string compute_dtype;
  double delay_s = 0;  // of a slowed stream, each time
};

/// What one step left: loss, norm, and the flat buffers after the update.
struct GateStep {
  float loss = 0, norm = 0;
  std::vector<float> gradient, exp_avg, exp_avg_sq, master;
};

struct GateTrace {
  std::vector<GateStep> steps;
  std::vector<ParameterView> views;
  ExecutorCounters counters;
};

class BitwiseGate {
 public:
  explicit BitwiseGate(const GateScale& scale);

  /// Trains the plan with everything resident: what the other runs must give.
  [[nodiscard]] GateTrace reference(const GateRun& plan) const;
  /// Trains one run of the cover, freed slots poisoned and one of the streams slowed by turns, and
  /// compares it with the reference (gtest expectations).
  void expect_same(const GateRun& run, const GateTrace& wanted) const;
  /// block_major in sweeps of one micro-batch, and micro_major (gtest expectations).
  void expect_sweeps_agree(const GateRun& plan) const;

 private:
  [[nodiscard]] RunSettings settings(const GateRun& run) const;
  [[nodiscard]] ResidencySettings residency(const GateRun& run, const RunSettings& settings) const;
  [[nodiscard]] GateTrace train(const GateRun& run, const RunSettings& settings) const;
  void compare(const GateTrace& got, const GateTrace& wanted) const;

  GateScale scale_;
  std::unique_ptr<BaseStore> base_;
  Adapter adapter_;
};

/// "dropout 0.1, accumulation 8, ..."
[[nodiscard]] std::string describe(const GateRun& run);

}  // namespace poros
