// SPDX-License-Identifier: Apache-2.0
// What poros-step-bench prints: lines as it goes, then one table or one JSON object.
#pragma once

#include <string>
#include <vector>

#include "base/json.hpp"
#include "bench_run.hpp"
#include "ceilings.hpp"
#include "train/device.hpp"

namespace poros::bench {

/// A result beside what the GPU could do.
struct Row {
  Result result;
  Ceilings ceilings;
  double operations = 0;   // of a step
  double resident_s = 0;   // a step of the same model's resident arm; 0: not run
  bool same_bits = false;  // as the first arm of its model

  [[nodiscard]] double tflops() const { return operations * 1e-12 / result.seconds; }
  /// The least time that the matrix unit or the host link leaves for a step [s]; 0: unknown.
  [[nodiscard]] double roofline_s() const;
};

[[nodiscard]] std::string line_of(const Row& row, const Options& options);
[[nodiscard]] std::string markdown_of(const std::vector<Row>& rows, const CudaFacts& facts,
                                      const Options& options);
[[nodiscard]] Json json_of(const std::vector<Row>& rows, const CudaFacts& facts,
                           const Options& options);

}  // namespace poros::bench
