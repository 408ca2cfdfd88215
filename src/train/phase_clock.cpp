// SPDX-License-Identifier: Apache-2.0
#include "train/phase_clock.hpp"

#include "base/clock.hpp"

namespace poros {

const char* name_of(Phase phase) {
  constexpr const char* kNames[kPhases] = {"upload",   "forward",   "head",
                                           "backward", "optimizer", "between"};
  return kNames[static_cast<std::size_t>(phase)];
}

void PhaseClock::begin(Phase phase) {
  Mark mark{phase, 0};
  if (stream_.device == DeviceKind::cuda) {
    if (events_.size() == marks_.size()) events_.emplace_back(stream_, true);
    events_[marks_.size()].record(stream_);
  } else {
    mark.wall_s = monotonic_s();
  }
  marks_.push_back(mark);
}

std::array<double, kPhases> PhaseClock::take() {
  begin(Phase::between);
  const bool cuda = stream_.device == DeviceKind::cuda;
  if (cuda) events_[marks_.size() - 1].wait_on_host();
  std::array<double, kPhases> seconds{};
  for (std::size_t at = 0; at + 1 < marks_.size(); ++at) {
    seconds[static_cast<std::size_t>(marks_[at].phase)] +=
        cuda ? events_[at + 1].since_s(events_[at]) : marks_[at + 1].wall_s - marks_[at].wall_s;
  }
  marks_.clear();
  return seconds;
}

}  // namespace poros
