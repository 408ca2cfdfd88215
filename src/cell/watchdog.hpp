// SPDX-License-Identifier: Apache-2.0
// What a cell says of itself while it runs (event pipe), and until when it must have said the next.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "spec/spec.hpp"

namespace poros {

/// Where a running cell stands.
struct CellProgress {
  std::string phase;  // import | load | quantise | warmup | train | finish; empty: nothing said yet
  std::int64_t step = 0, steps = 0;  // finished steps, and of how many
  std::optional<double> loss, s_per_step, memory_mb;
};

enum class CellEvent { heartbeat, phase, step };
using EventHandler = std::function<void(CellEvent, const CellProgress&)>;

/// Cuts the event pipe's bytes into lines and reads them. Lines that are no events are counted,
/// never an error: a cell's faults must not become the driver's.
class EventReader {
 public:
  /// Takes bytes; calls `on_event` after each event that they complete.
  void feed(std::string_view bytes, const EventHandler& on_event);

  [[nodiscard]] const CellProgress& progress() const { return progress_; }
  [[nodiscard]] std::int64_t events() const { return events_; }
  [[nodiscard]] std::int64_t malformed() const { return malformed_; }

 private:
  std::optional<CellEvent> read_line(std::string_view line);

  CellProgress progress_;
  std::string partial_;
  bool skipping_ = false;  // inside a line over the limit
  std::int64_t events_ = 0, malformed_ = 0;
};

/// Deadlines of a cell: one for all that comes before the first step, one for each step (and for
/// the end after the last step), one for the whole.
class Watchdog {
 public:
  Watchdog(const TimeoutSpec& timeouts, double now_s);

  /// A heartbeat says that the process lives, not that it gets on: it moves no deadline.
  void observe(CellEvent event, const CellProgress& progress, double now_s);

  /// Monotonic time of the next deadline [s].
  [[nodiscard]] double next_deadline() const;
  /// "load", "step" or "cell" when that deadline has passed, else empty.
  [[nodiscard]] std::string expired(double now_s) const;

 private:
  TimeoutSpec timeouts_;
  double cell_deadline_, phase_deadline_;
  bool stepping_ = false;
  std::string phase_;
};

}  // namespace poros
