// SPDX-License-Identifier: Apache-2.0
// What a person sees while a campaign runs: on a terminal one line that is kept up to date, else
// plain lines; for `bench status` the file live/<rank>.json.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "base/json.hpp"
#include "cell/watchdog.hpp"

namespace poros {

/// The pass that runs now.
struct RunningPass {
  std::string key, method, model, precision, purpose;  // purpose: timed | parity
  std::int64_t pass = 0, n_passes = 0, attempt = 1, steps = 0;
};

class LiveView {
 public:
  /// @param live_file live/<rank>.json; empty: none
  /// @param terminal keep one line up to date; else plain lines alone
  LiveView(std::filesystem::path live_file, std::FILE* out, bool terminal);
  ~LiveView();
  LiveView(const LiveView&) = delete;
  LiveView& operator=(const LiveView&) = delete;

  /// How many passes the campaign has in all and how many are left (for "[3/8]" and the ETA).
  void set_passes(std::int64_t total, std::int64_t left);

  /// Where this rank's cells run (to_json of Placement), for the file.
  void set_placement(Json placement) { placement_ = std::move(placement); }

  /// How many ranks share the passes.
  void set_ranks(int ranks) { ranks_ = ranks; }

  /// One plain line, for good.
  void say(const std::string& line);
  void begin(const RunningPass& pass);
  void event(const CellProgress& progress);
  /// To be called a few times a second: refreshes the line and, every 2 s, the file.
  void tick();
  /// Ends the running pass with its result line. @param counts its time counts for the ETA
  void end(const std::string& result, double wall_s, bool counts);
  /// What the driver does between passes ("preparing inputs"); empty: nothing.
  void set_activity(const std::string& text);

  /// Seconds until the campaign ends, from the mean time of finished passes; an estimate, nothing
  /// before the first pass has ended.
  [[nodiscard]] std::optional<double> eta_s() const;

 private:
  [[nodiscard]] std::string running_line() const;
  [[nodiscard]] std::optional<double> pass_eta_s() const;
  void write_file();
  void clear_line();

  std::filesystem::path live_file_;
  std::FILE* out_;
  bool terminal_, line_shown_ = false;
  std::optional<RunningPass> running_;
  CellProgress progress_;
  std::string activity_;
  Json placement_;
  int ranks_ = 1;
  std::int64_t total_ = 0, left_ = 0;
  double begun_s_ = 0, line_s_ = 0, file_s_ = 0;
  std::map<std::string, std::pair<double, int>> wall_by_method_;  // sum [s], count
};

/// "1.2 s", "3 min 20 s", "2 h 5 min"
[[nodiscard]] std::string duration_text(double seconds);

}  // namespace poros
