// SPDX-License-Identifier: Apache-2.0
// Where a step's time goes, by phase. On a GPU events on the compute stream, so that nothing waits;
// on the CPU the wall clock. An executor without one does nothing for it.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "kernels/device.hpp"
#include "train/device.hpp"

namespace poros {

enum class Phase : std::size_t { upload, forward, head, backward, optimizer, between };
inline constexpr std::size_t kPhases = 6;

[[nodiscard]] const char* name_of(Phase phase);

class PhaseClock {
 public:
  explicit PhaseClock(const Stream& stream) : stream_(stream) {}

  /// What is queued from now on belongs to `phase`.
  void begin(Phase phase);
  /// Seconds of each phase since the last call. Waits for the stream.
  [[nodiscard]] std::array<double, kPhases> take();

 private:
  struct Mark {
    Phase phase = Phase::between;
    double wall_s = 0;  // CPU
  };
  Stream stream_;
  std::vector<Mark> marks_;
  std::vector<Event> events_;  // CUDA; as many as were ever needed
};

}  // namespace poros
