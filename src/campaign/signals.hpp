// SPDX-License-Identifier: Apache-2.0
// Being asked to stop: SIGINT, SIGTERM, SIGHUP, SIGUSR1 (Slurm's warning before the time limit).
#pragma once

#include <csignal>

#include "base/files.hpp"

namespace poros {

/// Handles the signals from its construction to its destruction. The handler sets a flag and writes
/// one byte to a pipe, nothing else. At most one object at a time.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  [[nodiscard]] bool requested() const;
  /// Name of the first signal, for messages.
  [[nodiscard]] const char* name() const;
  /// Becomes readable with the first signal.
  [[nodiscard]] int fd() const { return read_.get(); }

 private:
  static constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
  UniqueFd read_, write_;
  struct sigaction old_[4];
};

}  // namespace poros
