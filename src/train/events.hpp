// SPDX-License-Identifier: Apache-2.0
// What a cell tells while it runs: JSON lines on the event pipe (cell/protocol.hpp).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "base/files.hpp"
#include "base/json.hpp"

namespace poros {

/// One step as the live view shows it.
struct StepEvent {
  std::int64_t step = 0;   // from 1
  std::int64_t steps = 0;  // in all
  double loss = 0;
  double s_per_step = 0;
  double memory_mb = 0;
};

/// Writes events, each as one line of at most 4096 bytes in one write, so that lines never mix.
/// Reporting never holds up or ends the work: a line is dropped when the pipe is full, and a reader
/// that is gone silences the pipe for good. SIGPIPE must be ignored by the program.
class EventPipe {
 public:
  static constexpr std::size_t kMaxLine = 4096;
  static constexpr double kHeartbeatS = 5.0;

  /// @param fd -1: events go nowhere.
  /// @param heartbeat_s interval of the heartbeat in phases without steps [s]
  explicit EventPipe(UniqueFd fd = UniqueFd(), double heartbeat_s = kHeartbeatS);
  /// The descriptor named by POROS_EVENT_FD, which is then closed on exec; silent when the variable
  /// is unset. @throws Error(Fault::usage) when it names no open descriptor.
  [[nodiscard]] static UniqueFd fd_from_environment(const char* variable);

  ~EventPipe();
  EventPipe(const EventPipe&) = delete;
  EventPipe& operator=(const EventPipe&) = delete;

  /// Enters a phase. A background thread sends heartbeats until a phase with steps (warmup, train)
  /// begins: from there on silence is news, since it means that a step hangs.
  void phase(std::string_view name);
  void step(const StepEvent& event);

 private:
  void send(const Json& event);
  void beat();

  UniqueFd fd_;
  double heartbeat_s_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool beating_ = false;
  bool ending_ = false;
  std::thread heart_;
};

}  // namespace poros
