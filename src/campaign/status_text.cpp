// SPDX-License-Identifier: Apache-2.0
// bench status for people.
#include <cstdio>
#include <ctime>

#include <unistd.h>

#include "base/error.hpp"
#include "campaign/campaign.hpp"
#include "campaign/live.hpp"
#include "campaign/signals.hpp"
#include "campaign/slurm_queue.hpp"
#include "campaign/summary.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

/// "running (pid 12 on n1)"
std::string driver_text(const Json& driver) {
  std::string text = driver.at("state").get<std::string>();
  if (driver.at("pid").is_number() && text != "not running") {
    text += fmt::format(" (pid {} on {})", driver.at("pid").get<std::int64_t>(),
                        driver.at("host").get<std::string>());
  }
  return text;
}

std::string counts_text(const Json& counts) {
  return fmt::format("{} done, {} running, {} failed, {} skipped, {} left of {}",
                     counts.at("done").get<int>(), counts.at("running").get<int>(),
                     counts.at("failed").get<int>(), counts.at("skipped").get<int>(),
                     counts.at("left").get<int>(), counts.at("total").get<int>());
}

/// Cells that are done say nothing; a large campaign shows those that matter.
constexpr std::size_t kMostCells = 60;

std::string cell_name(const Json& cell) {
  const std::string variant = cell.at("variant").get<std::string>();
  return fmt::format("{} {} {}{}", cell.at("method").get<std::string>(),
                     cell.at("model").get<std::string>(), cell.at("precision").get<std::string>(),
                     variant.empty() ? "" : " (" + variant + ")");
}

void print_cells(const Json& status, bool why) {
  std::vector<std::vector<std::string>> rows{{"cell", "state", "passes ok"}};
  const bool many_types = status.at("by_gpu").size() > 1;
  if (many_types) rows.front().emplace_back("GPU");
  std::size_t left_out = 0;
  std::string reasons;
  const bool large = status.at("cells").size() > kMostCells;
  for (const Json& cell : status.at("cells")) {
    std::string state = cell.at("state").get<std::string>();
    const bool dull = state == "done" || (state == "left" && !why);
    if ((why && state == "done") || (large && dull)) {
      ++left_out;
      continue;
    }
    if (cell.at("reason").is_string()) state += " (" + cell.at("reason").get<std::string>() + ")";
    rows.push_back(
        {cell_name(cell), state, std::to_string(cell.at("passes_ok").get<std::int64_t>())});
    if (many_types) rows.back().push_back(cell.at("gpu").get<std::string>());
    if (why && cell.at("why").is_string()) {
      reasons += fmt::format("{}: {}\n", cell_name(cell), cell.at("why").get<std::string>());
    }
  }
  if (rows.size() > 1) fmt::print("{}", aligned(rows));
  if (left_out > 0) {
    fmt::print("{} cells that are {} are not shown; --json lists all\n", left_out,
               why ? "done" : "done or left");
  }
  if (!reasons.empty()) fmt::print("\n{}\n", reasons);
}

void print_status_text(const Json& status, bool why) {
  const Json& driver = status.at("driver");
  fmt::print("{}: driver {}\n", status.at("campaign").get<std::string>(), driver_text(driver));
  const Json& drivers = status.at("drivers");
  for (const Json& shard : drivers) {
    if (!shard.at("shard").is_string()) continue;
    fmt::print("shard {}: {}\n", shard.at("shard").get<std::string>(), driver_text(shard));
  }
  fmt::print("cells: {}\n", counts_text(status.at("counts")));
  if (status.at("by_gpu").size() > 1) {
    for (const auto& [gpu, counts] : status.at("by_gpu").items()) {
      fmt::print("  {}: {}\n", gpu, counts_text(counts));
    }
  }
  print_cells(status, why);
  for (const Json& now : status.at("running")) {
    fmt::print("running: {} {} {} {}, phase {}, step {}/{}, for {}\n",
               now.at("method").get<std::string>(), now.at("model").get<std::string>(),
               now.at("purpose").get<std::string>() == "parity" ? "parity" : "pass",
               now.at("pass").get<std::int64_t>() + 1, now.at("phase").get<std::string>(),
               now.at("step").get<std::int64_t>(), now.at("steps").get<std::int64_t>(),
               duration_text(now.at("running_s").get<double>()));
  }
  if (driver.at("activity").is_string()) {
    fmt::print("now: {}\n", driver.at("activity").get<std::string>());
  }
  fmt::print("{}", slurm_status_text(status.at("slurm")));
  if (status.at("eta_s").is_number()) {
    fmt::print("left (estimate): {}\n", duration_text(status.at("eta_s").get<double>()));
  }
}

}  // namespace

int print_status(const fs::path& dir, bool watch, bool json, bool why) {
  const StopSignals signals;
  while (true) {
    const Json status = campaign_status(dir);
    if (watch && !json && ::isatty(STDOUT_FILENO) == 1) fmt::print("\x1b[H\x1b[2J");
    if (json) {
      fmt::print("{}\n", dump_json(status, watch ? -1 : 2));
    } else {
      print_status_text(status, why);
    }
    std::fflush(stdout);
    const bool is_running =
        status.at("driver").at("state") == "running" || has_live_jobs(status.at("slurm"));
    if (!watch || !is_running) return kDone;
    for (int i = 0; i < 20 && !signals.requested(); ++i) {
      const timespec pause{0, 100'000'000};
      ::nanosleep(&pause, nullptr);
    }
    if (signals.requested()) return kDone;
  }
}

}  // namespace poros
