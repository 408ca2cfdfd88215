// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "campaign/driver.hpp"

namespace poros {

/// Held while inputs are made: they are shared by all ranks, and so is their index. Rank 0 keeps
/// it; alone there is nobody to keep out.
class Driver::InputLock {
 public:
  explicit InputLock(Driver& driver);
  ~InputLock();
  InputLock(const InputLock&) = delete;
  InputLock& operator=(const InputLock&) = delete;
  /// False when the run is to stop.
  [[nodiscard]] bool held() const { return held_; }

 private:
  RankSession* session_;
  bool held_ = false;
};

/// Held while a pass runs: rank 0 admits it beside those of the other ranks of this host (memory,
/// --exclusive-host). Alone it is always granted.
class Driver::HostTurn {
 public:
  HostTurn(Driver& driver, const PlannedCell& cell);
  ~HostTurn();
  HostTurn(const HostTurn&) = delete;
  HostTurn& operator=(const HostTurn&) = delete;
  /// False when the run is to stop.
  [[nodiscard]] bool granted() const { return granted_; }

 private:
  RankSession* session_;
  bool asked_ = false, granted_ = false;
};

}  // namespace poros
