// SPDX-License-Identifier: Apache-2.0
#include "simulated_schedule.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <queue>
#include <random>
#include <set>

#include <fmt/format.h>

#include "campaign/coordinator.hpp"
#include "receipts/journal.hpp"

namespace poros::testing {
namespace {

constexpr double kFaulty = 0.03,
                 kFailing = 0.02;  // attempts that are lost, cells that fail
constexpr int kLostAttempts = 3;   // of a pass in one run, as in the driver
constexpr double kWait_s = 2;      // a rank that was told to wait asks again

/// What a try of a cell will do.
struct Try {
  double seconds = 0;
  const char *status = "ok", *reason = "";
};

class Simulation {
 public:
  Simulation(const ScheduleOptions& options, const std::filesystem::path& dir)
      : o_(options), random_(options.seed), journal_(JournalWriter::open(dir / kJournalName)) {
    make_plan();
    Coordinator::Start start;
    start.passes_left = static_cast<std::int64_t>(plan_.cells.size());
    start.groups.resize(plan_.groups.size());
    ranks_.resize(static_cast<std::size_t>(o_.types * o_.ranks_per_type));
    coordinator_.emplace(plan_, journal_, std::move(start), static_cast<int>(ranks_.size()));
  }

  ScheduleFigures run() {
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
      Placement placement;
      placement.host = fmt::format("node{}", rank / 8);
      placement.gpu_uuid = uuid(rank);
      placement.gpu_type = type_name(type_of(rank));
      placement.local_size = 8;
      ask(rank, {{"ask", "hello"}, {"placement", to_json(placement)}});
      events_.emplace(0.0, rank);
    }
    while (!events_.empty()) {
      const auto [now_s, rank] = events_.top();
      events_.pop();
      wake(now_s, rank);
    }
    return figures();
  }

 private:
  struct Rank {
    std::vector<std::size_t> cells;  // of its group, those still to run
    Try current;
    bool is_running = false;
    int attempts = 0;  // of the current cell
    double group_s = 0;
  };

  [[nodiscard]] int type_of(int rank) const { return rank / o_.ranks_per_type; }
  [[nodiscard]] bool is_sick(int rank) const {
    return o_.sick_gpu && rank % o_.ranks_per_type == 0;
  }
  static std::string uuid(int rank) { return fmt::format("GPU-{}", rank); }
  static std::string type_name(int type) { return fmt::format("Type {}", type); }
  double uniform() { return std::uniform_real_distribution<double>(0, 1)(random_); }

  void make_plan() {
    plan_.spec.training.n_passes = 1;
    for (int g = 0; g < o_.groups; ++g) {
      // Model sizes from 0.5 to 72 billion parameters, evenly on a logarithmic scale.
      const double billions = 0.5 * std::pow(144.0, uniform());
      const int type = static_cast<int>(random_() % static_cast<unsigned>(o_.types));
      ComparisonGroup group{fmt::format("group{}", g), {}};
      for (int c = 0; c < o_.cells_per_group; ++c) {
        PlannedCell cell;
        cell.key = fmt::format("cell{}.{}", g, c);
        cell.group = group.key;
        cell.spec.hardware.gpu_name = type_name(type);
        cell.spec.model.model_id = "made-up/model";
        if (o_.sizes_known) cell.spec.model.param_count_b = billions;
        group.cells.push_back(plan_.cells.size());
        plan_.cells.push_back(std::move(cell));
        predicted_s_.push_back(20 * billions);
      }
      plan_.groups.push_back(std::move(group));
    }
  }

  Json ask(int rank, const Json& request) { return coordinator_->handle(rank, request); }

  Try next_try(int rank, std::size_t cell) {
    const double spread = std::lognormal_distribution<double>(0, 0.3)(random_);
    Try result{predicted_s_[cell] * spread, "ok", ""};
    const double fate = uniform();
    if (is_sick(rank)) {
      result = {1, "error", "lost"};
    } else if (fate < kFaulty) {
      result = {result.seconds * uniform(), "error", "lost"};
    } else if (fate < kFaulty + kFailing) {
      result = {result.seconds * uniform(), "error", "exit_code"};
    }
    return result;
  }

  void begin(double now_s, int rank) {
    Rank& self = ranks_[static_cast<std::size_t>(rank)];
    self.current = next_try(rank, self.cells.front());
    self.is_running = true;
    ++self.attempts;
    events_.emplace(now_s + self.current.seconds, rank);
  }

  /// Writes the try down. @returns true when the rank's GPU is set aside
  bool record(int rank) {
    Rank& self = ranks_[static_cast<std::size_t>(rank)];
    const PlannedCell& cell = plan_.cells[self.cells.front()];
    const Json reply = ask(rank, {{"ask", "receipt"},
                                  {"receipt",
                                   {{"kind", "attempt"},
                                    {"key", cell.key},
                                    {"fields",
                                     {{"purpose", "timed"},
                                      {"pass", 0},
                                      {"attempt", self.attempts},
                                      {"status", self.current.status},
                                      {"reason", self.current.reason},
                                      {"gpu_uuid", uuid(rank)}}},
                                    {"artifact_path", ""},
                                    {"artifact_sha256", ""}}}});
    return reply.at("set_aside").get<bool>();
  }

  void wake(double now_s, int rank) {
    Rank& self = ranks_[static_cast<std::size_t>(rank)];
    const auto type = static_cast<std::size_t>(type_of(rank));
    if (self.is_running) {
      self.is_running = false;
      const bool lost = std::string_view(self.current.reason) == "lost";
      lost_ += lost ? 1 : 0;
      busy_s_[type] += is_sick(rank) ? 0 : self.current.seconds;
      self.group_s += self.current.seconds;
      longest_s_[type] = std::max(longest_s_[type], self.group_s);
      makespan_s_[type] = std::max(makespan_s_[type], now_s);
      const std::string& key = plan_.cells[self.cells.front()].key;
      if (record(rank)) {
        ++set_aside_;
        next(now_s, rank, true);
        return;
      }
      if (lost && self.attempts < kLostAttempts) return begin(now_s, rank);
      if (!lost) {
        twice_ += done_.insert(key).second ? 0 : 1;
        failed_ += std::string_view(self.current.status) == "ok" ? 0 : 1;
      }
      self.cells.erase(self.cells.begin());
      self.attempts = 0;
      if (!self.cells.empty()) return begin(now_s, rank);
    }
    next(now_s, rank, false);
  }

  void next(double now_s, int rank, bool returned) {
    Rank& self = ranks_[static_cast<std::size_t>(rank)];
    const Json reply = ask(rank, {{"ask", "next"}, {"returned", returned}});
    if (reply.contains("wait")) {
      events_.emplace(now_s + kWait_s, rank);
    } else if (reply.contains("group")) {
      self.cells = plan_.groups.at(reply.at("group").get<std::size_t>()).cells;
      // What another rank had done of it stays done.
      std::erase_if(self.cells,
                    [&](std::size_t cell) { return done_.contains(plan_.cells[cell].key); });
      self.attempts = 0;
      self.group_s = 0;
      if (self.cells.empty()) return next(now_s, rank, false);
      begin(now_s, rank);
    } else {
      static_cast<void>(ask(rank, {{"ask", "leave"}}));
    }
  }

  [[nodiscard]] ScheduleFigures figures() const {
    ScheduleFigures result;
    const int healthy = o_.ranks_per_type - (o_.sick_gpu ? 1 : 0);
    for (std::size_t type = 0; type < static_cast<std::size_t>(o_.types); ++type) {
      const double bound_s = std::max(busy_s_[type] / healthy, longest_s_[type]);
      result.types.push_back({makespan_s_[type], bound_s});
      result.makespan_s = std::max(result.makespan_s, makespan_s_[type]);
      result.bound_s = std::max(result.bound_s, bound_s);
    }
    result.finished = static_cast<std::int64_t>(done_.size());
    result.lost = lost_;
    result.failed = failed_;
    result.set_aside = set_aside_;
    result.twice = twice_;
    return result;
  }

  ScheduleOptions o_;
  std::mt19937 random_;
  JournalWriter journal_;
  CampaignPlan plan_;
  std::vector<double> predicted_s_;  // by cell
  std::optional<Coordinator> coordinator_;
  std::vector<Rank> ranks_;
  // Earliest first; at the same time the lower rank.
  using Event = std::pair<double, int>;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::set<std::string> done_;
  std::vector<double> busy_s_ = std::vector<double>(static_cast<std::size_t>(o_.types)),
                      longest_s_ = busy_s_, makespan_s_ = busy_s_;
  std::int64_t lost_ = 0, failed_ = 0, set_aside_ = 0, twice_ = 0;
};

}  // namespace

ScheduleFigures simulate_schedule(const ScheduleOptions& options,
                                  const std::filesystem::path& dir) {
  return Simulation(options, dir).run();
}

}  // namespace poros::testing
