// SPDX-License-Identifier: Apache-2.0
// What a person sees of a training: events.jsonl as it grows, on a terminal as one line that is
// kept up to date, else a plain line an event.
#pragma once

#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>

#include "base/files.hpp"
#include "base/json.hpp"

namespace poros {

class TrainView {
 public:
  /// @param events the file; what stands in it already is an earlier run's and not shown
  /// @param run_id of the run whose events are shown
  TrainView(std::filesystem::path events, std::string run_id, std::FILE* out, bool terminal,
            bool quiet);
  ~TrainView();
  TrainView(const TrainView&) = delete;
  TrainView& operator=(const TrainView&) = delete;

  /// One line, for good.
  void say(const std::string& line);
  /// What goes on before the first step ("load"); empty: nothing.
  void set_activity(std::string text) { activity_ = std::move(text); }
  /// Reads what is new; to be called a few times a second, and once at the end.
  void update();

  /// Data of the run's teardown; null before it.
  [[nodiscard]] const Json& teardown() const { return teardown_; }
  [[nodiscard]] const Json& last_error() const { return error_; }
  [[nodiscard]] const Json& oom() const { return oom_; }

 private:
  void read_new();
  void take(const Json& event);
  void take_step(std::int64_t step, const Json& data);
  void show_line();
  void clear_line();

  std::filesystem::path path_;
  std::string run_id_, pending_, activity_, line_;
  std::FILE* out_;
  bool terminal_, quiet_, line_shown_ = false;
  UniqueFd fd_;
  std::uint64_t at_ = 0;  // read up to here
  std::int64_t steps_ = 0;
  double smooth_s_ = 0;  // seconds a step, smoothed
  double line_s_ = 0;
  Json teardown_, error_, oom_;
};

}  // namespace poros
