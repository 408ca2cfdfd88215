// SPDX-License-Identifier: Apache-2.0
#include "cell/watchdog.hpp"

#include <algorithm>
#include <array>

#include "base/json.hpp"

namespace poros {
namespace {

constexpr std::size_t kLongestLine = 4096;  // cell/protocol.hpp

bool is_phase(std::string_view phase) {
  static constexpr std::array<std::string_view, 6> kPhases{"import", "load",  "quantise",
                                                           "warmup", "train", "finish"};
  return std::find(kPhases.begin(), kPhases.end(), phase) != kPhases.end();
}

}  // namespace

std::optional<CellEvent> EventReader::read_line(std::string_view line) {
  try {
    const Json event =
        parse_json(line, "event", JsonLimits{.max_bytes = kLongestLine, .max_depth = 4});
    const auto kind = json_get<std::string>(event, "event", "event");
    if (kind == "heartbeat") return CellEvent::heartbeat;
    if (kind == "phase") {
      const auto phase = json_get<std::string>(event, "phase", "event");
      if (!is_phase(phase)) return std::nullopt;
      progress_.phase = phase;
      return CellEvent::phase;
    }
    if (kind != "step") return std::nullopt;
    CellProgress next = progress_;
    next.step = json_get<std::int64_t>(event, "step", "event");
    next.steps = json_find<std::int64_t>(event, "steps", "event").value_or(progress_.steps);
    next.loss = json_find<double>(event, "loss", "event");
    next.s_per_step = json_find<double>(event, "s_per_step", "event");
    next.memory_mb = json_find<double>(event, "memory_mb", "event");
    if (next.step < 0 || next.steps < 0) return std::nullopt;
    progress_ = next;
    return CellEvent::step;
  } catch (const Error&) {
    return std::nullopt;
  }
}

void EventReader::feed(std::string_view bytes, const EventHandler& on_event) {
  while (!bytes.empty()) {
    const auto end = bytes.find('\n');
    const std::string_view part = bytes.substr(0, end);
    if (!skipping_) partial_.append(part.substr(0, kLongestLine + 1));
    if (partial_.size() > kLongestLine) {
      partial_.clear();
      skipping_ = true;
    }
    if (end == std::string_view::npos) return;
    bytes.remove_prefix(end + 1);
    const std::optional<CellEvent> event = skipping_ ? std::nullopt : read_line(partial_);
    if (!event) {
      ++malformed_;
    } else {
      ++events_;
      if (on_event) on_event(*event, progress_);
    }
    partial_.clear();
    skipping_ = false;
  }
}

Watchdog::Watchdog(const TimeoutSpec& timeouts, double now_s)
    : timeouts_(timeouts),
      cell_deadline_(now_s + timeouts.cell_s),
      phase_deadline_(now_s + timeouts.load_s) {}

void Watchdog::observe(CellEvent event, const CellProgress& progress, double now_s) {
  if (event == CellEvent::heartbeat) return;
  const bool in_steps =
      progress.phase == "warmup" || progress.phase == "train" || progress.phase == "finish";
  const bool new_phase = progress.phase != phase_;
  phase_ = progress.phase;
  if (event == CellEvent::step || (in_steps && new_phase)) {
    stepping_ = true;
    phase_deadline_ = now_s + timeouts_.step_s;
  }
}

double Watchdog::next_deadline() const {
  return std::min(cell_deadline_, phase_deadline_);
}

std::string Watchdog::expired(double now_s) const {
  if (now_s >= phase_deadline_) return stepping_ ? "step" : "load";
  if (now_s >= cell_deadline_) return "cell";
  return {};
}

}  // namespace poros
