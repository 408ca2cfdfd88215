// SPDX-License-Identifier: Apache-2.0
// bench status: from spec.json, journal, lease and live files alone.
#include <cstdio>
#include <ctime>
#include <system_error>

#include <unistd.h>

#include "base/clock.hpp"
#include "base/files.hpp"
#include "campaign/campaign.hpp"
#include "campaign/folder.hpp"
#include "campaign/ledger.hpp"
#include "campaign/live.hpp"
#include "campaign/signals.hpp"
#include "campaign/slurm_queue.hpp"
#include "campaign/summary.hpp"
#include "receipts/journal.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

Json read_spec_json(const CampaignFolder& folder) {
  std::error_code error;
  if (!fs::exists(folder.spec(), error)) {
    // Submitted, and the first job has not begun.
    if (!recorded_jobs(folder.dir()).empty()) return {{"cells", Json::object()}};
    fail(Fault::input, "{}: no campaign: there is no spec.json in it", folder.dir().string());
  }
  return parse_json(read_file(folder.spec()), folder.spec().string());
}

/// Seconds since the file was changed; it is renamed into place every 2 s.
double age_s(const fs::path& path) {
  std::error_code error;
  const auto time = fs::last_write_time(path, error);
  if (error) return 0;
  return std::chrono::duration<double>(fs::file_time_type::clock::now() - time).count();
}

/// The live files of the ranks; one that is just being replaced or is broken is left out.
std::vector<Json> live_files(const CampaignFolder& folder) {
  std::vector<Json> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder.live(), error)) {
    if (entry.path().extension() != ".json") continue;
    try {
      Json live = parse_json(read_file(entry.path()), entry.path().string());
      live["age_s"] = age_s(entry.path());
      files.push_back(std::move(live));
    } catch (const Error&) {
      continue;
    }
  }
  return files;
}

const char* state_name(LeaseState state) {
  switch (state) {
    case LeaseState::none:
    case LeaseState::released:
      return "not running";
    case LeaseState::live:
      return "running";
    case LeaseState::dead:
      return "killed";
    case LeaseState::stale:
      return "silent";
  }
  return "unknown";
}

}  // namespace

Json campaign_status(const fs::path& dir) {
  const CampaignFolder folder(dir);
  const Json spec = read_spec_json(folder);
  const Ledger ledger(read_journal(folder.journal()).receipts);
  const LeaseView lease = view_lease(folder.journal());
  const bool is_running = lease.state == LeaseState::live;

  Json counts{{"total", 0},   {"done", 0},    {"failed", 0},
              {"skipped", 0}, {"running", 0}, {"left", 0}};
  Json running = Json::array();
  Json eta = nullptr;
  std::string activity;
  for (const Json& live : is_running ? live_files(folder) : std::vector<Json>()) {
    if (live.value("running", Json()).is_object()) {
      Json cell = live.at("running");
      cell["age_s"] = live.at("age_s");
      running.push_back(std::move(cell));
    }
    if (live.contains("eta_s") && live.at("eta_s").is_number()) eta = live.at("eta_s");
    activity = live.value("activity", "");
  }
  Json cells = Json::array();
  const auto count = [&](const char* name) {
    counts[name] = counts[name].get<int>() + 1;
    return name;
  };
  for (const auto& [key, cell] : spec.at("cells").items()) {
    count("total");
    bool runs = false;
    for (const Json& now : running) runs = runs || now.value("key", "") == key;
    const ResultEntry* entry = ledger.cell(key);
    std::int64_t passes = 0;
    for (const AttemptEntry& pass : ledger.passes(key, "timed")) passes += pass.status == "ok";
    const char* state = nullptr;
    if (runs) {
      state = count("running");
    } else if (entry == nullptr) {
      state = count("left");
    } else if (entry->status == "ok") {
      state = count("done");
    } else {
      state = count(entry->status == "skipped" ? "skipped" : "failed");
    }
    cells.push_back({{"key", key},
                     {"index", cell.value("index", 0)},
                     {"method", cell.value("method", "")},
                     {"model", cell.value("model", "")},
                     {"precision", cell.value("precision", "")},
                     {"state", state},
                     {"status", entry == nullptr ? Json(nullptr) : Json(entry->status)},
                     {"reason", entry == nullptr || entry->reason.empty() ? Json(nullptr)
                                                                          : Json(entry->reason)},
                     {"passes_ok", passes}});
  }
  std::sort(cells.begin(), cells.end(),
            [](const Json& a, const Json& b) { return a.at("index") < b.at("index"); });
  Json driver{{"state", state_name(lease.state)}, {"host", nullptr}, {"pid", nullptr}};
  if (lease.holder) {
    driver["host"] = lease.holder->host;
    driver["pid"] = lease.holder->pid;
  }
  driver["activity"] = activity.empty() ? Json(nullptr) : Json(activity);
  return {{"campaign", dir.string()},
          {"spec_id", spec.value("spec_id", "")},
          {"driver", driver},
          {"counts", counts},
          {"cells", cells},
          {"running", running},
          {"slurm", slurm_status(dir)},
          {"eta_s", eta}};
}

namespace {

void print_status_text(const Json& status) {
  const Json& counts = status.at("counts");
  const Json& driver = status.at("driver");
  std::string who = driver.at("state").get<std::string>();
  if (driver.at("pid").is_number() && who != "not running") {
    who += fmt::format(" (pid {} on {})", driver.at("pid").get<std::int64_t>(),
                       driver.at("host").get<std::string>());
  }
  fmt::print("{}: driver {}\n", status.at("campaign").get<std::string>(), who);
  fmt::print("cells: {} done, {} running, {} failed, {} skipped, {} left of {}\n",
             counts.at("done").get<int>(), counts.at("running").get<int>(),
             counts.at("failed").get<int>(), counts.at("skipped").get<int>(),
             counts.at("left").get<int>(), counts.at("total").get<int>());
  std::vector<std::vector<std::string>> rows{{"cell", "state", "passes ok"}};
  for (const Json& cell : status.at("cells")) {
    std::string state = cell.at("state").get<std::string>();
    if (cell.at("reason").is_string()) state += " (" + cell.at("reason").get<std::string>() + ")";
    rows.push_back(
        {fmt::format("{} {} {}", cell.at("method").get<std::string>(),
                     cell.at("model").get<std::string>(), cell.at("precision").get<std::string>()),
         state, std::to_string(cell.at("passes_ok").get<std::int64_t>())});
  }
  fmt::print("{}", aligned(rows));
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

int print_status(const fs::path& dir, bool watch, bool json) {
  const StopSignals signals;
  while (true) {
    const Json status = campaign_status(dir);
    if (watch && !json && ::isatty(STDOUT_FILENO) == 1) fmt::print("\x1b[H\x1b[2J");
    if (json) {
      fmt::print("{}\n", dump_json(status, watch ? -1 : 2));
    } else {
      print_status_text(status);
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
