// SPDX-License-Identifier: Apache-2.0
// What ran on the GPU, by name and time: CUPTI's activity records. The library is opened when a
// trace begins; programs that never trace don't need it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/json.hpp"

namespace poros::bench {

/// A kernel or a copy on the device.
struct Activity {
  std::string name;  // of a kernel; "copy host to device" and the like
  std::uint64_t begin_ns = 0, end_ns = 0;
  std::uint64_t bytes = 0;  // of a copy
  bool copy = false;
};

class KernelTrace {
 public:
  /// Begins to record. @throws Error(Fault::environment) where CUPTI is missing or refuses, with
  /// what mends it
  KernelTrace();
  ~KernelTrace();
  KernelTrace(const KernelTrace&) = delete;
  KernelTrace& operator=(const KernelTrace&) = delete;
  /// Stops; all work must be done.
  [[nodiscard]] std::vector<Activity> finish();

 private:
  bool running_ = false;
};

/// A trace summed up.
struct TraceSummary {
  struct Kind {
    double seconds = 0;
    std::int64_t calls = 0;
  };
  std::map<std::string, Kind> kinds;    // "matrix products", "attention", ...
  std::map<std::string, Kind> kernels;  // by name
  double copy_s = 0, copied_gb = 0;     // host to device
  double span_s = 0;                    // from the first begin to the last end
  double compute_s = 0;                 // in which a kernel ran
  double exposed_copy_s = 0;            // in which only copies ran
  double idle_s = 0;                    // in which nothing ran
};
[[nodiscard]] TraceSummary summarise(const std::vector<Activity>& activities);

/// What a kernel is for, from its name.
[[nodiscard]] std::string kind_of_kernel(const std::string& name);

[[nodiscard]] std::string text_of(const TraceSummary& trace, std::int64_t steps);
[[nodiscard]] Json json_of(const TraceSummary& trace, std::int64_t steps);

}  // namespace poros::bench
