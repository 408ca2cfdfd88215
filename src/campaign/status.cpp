// SPDX-License-Identifier: Apache-2.0
// bench status: from spec.json, journal, lease and live files alone.
#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <system_error>

#include "base/files.hpp"
#include "campaign/campaign.hpp"
#include "campaign/folder.hpp"
#include "campaign/ledger.hpp"
#include "campaign/open_campaign.hpp"
#include "campaign/placement.hpp"
#include "campaign/slurm_queue.hpp"
#include "receipts/shards.hpp"

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
  return read_campaign_spec(folder.spec());
}

/// Seconds since the file was changed; it is renamed into place every 2 s.
double age_s(const fs::path& path) {
  std::error_code error;
  const auto time = fs::last_write_time(path, error);
  if (error) return 0;
  return std::chrono::duration<double>(fs::file_time_type::clock::now() - time).count();
}

/// Who drives the campaign, or one shard of it.
struct DriverView {
  std::string shard;  // empty: the whole
  LeaseView lease;
  [[nodiscard]] bool is_running() const { return lease.state == LeaseState::live; }
};

std::vector<DriverView> drivers_of(const CampaignFolder& folder) {
  std::vector<DriverView> drivers{{"", view_lease(folder.journal())}};
  for (const std::string& name : shard_names(folder.dir())) {
    drivers.push_back({name, view_lease(shard_journal(folder.dir(), name))});
  }
  if (drivers.size() > 1 && drivers.front().lease.state == LeaseState::none) {
    drivers.erase(drivers.begin());
  }
  return drivers;
}

/// The live files of ranks whose driver runs: live/<rank>.json, live/<shard>-<rank>.json. One that
/// is just being replaced or is broken is left out.
std::vector<Json> live_files(const CampaignFolder& folder, const std::vector<DriverView>& drivers) {
  std::vector<Json> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder.live(), error)) {
    if (entry.path().extension() != ".json") continue;
    const std::string stem = entry.path().stem().string();
    const auto dash = stem.rfind('-');
    const std::string shard = dash == std::string::npos ? "" : stem.substr(0, dash);
    const auto driver = std::ranges::find(drivers, shard, &DriverView::shard);
    if (driver == drivers.end() || !driver->is_running()) continue;
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

/// What keeps a cell that has no result and does not run.
std::string why_left(const Ledger& ledger, const std::string& key, const std::string& gpu,
                     const std::vector<Json>& ranks) {
  std::string why;
  if (ranks.empty()) {
    why = "no driver runs: `poros bench run` or `matrix` goes on";
  } else {
    std::int64_t takers = 0;
    for (const Json& rank : ranks) {
      const Json& placement = rank.value("placement", Json());
      const bool known = placement.is_object();
      if (!known || fits_placement(gpu, placement_from_json(placement))) ++takers;
    }
    why = takers == 0 ? fmt::format("no running rank has a {}", gpu)
                      : fmt::format("waits for its turn: {} running rank{} can take it", takers,
                                    takers == 1 ? "" : "s");
  }
  for (const AttemptEntry& pass : ledger.passes(key, "timed")) {
    if (pass.superseded || pass.counts()) continue;
    why += fmt::format("; attempt {} at pass {} was {}", pass.attempt, pass.pass + 1, pass.reason);
  }
  return why;
}

std::string why_ended(const ResultEntry& entry) {
  std::string why = entry.status + (entry.reason.empty() ? "" : "/" + entry.reason);
  if (!entry.message.empty()) why += ": " + entry.message;
  if (entry.status == "error" || entry.status == "oom") why += "; --retry runs it again";
  return why;
}

Json zero_counts() {
  return {{"total", 0}, {"done", 0}, {"failed", 0}, {"skipped", 0}, {"running", 0}, {"left", 0}};
}

const char* state_of(const ResultEntry* entry, bool runs) {
  if (runs) return "running";
  if (entry == nullptr) return "left";
  if (entry->status == "ok") return "done";
  return entry->status == "skipped" ? "skipped" : "failed";
}

Json driver_json(const DriverView& driver) {
  Json json{{"state", state_name(driver.lease.state)}, {"host", nullptr}, {"pid", nullptr}};
  if (driver.lease.holder) {
    json["host"] = driver.lease.holder->host;
    json["pid"] = driver.lease.holder->pid;
  }
  return json;
}

}  // namespace

Json campaign_status(const fs::path& dir) {
  const CampaignFolder folder(dir);
  const Json spec = read_spec_json(folder);
  const Ledger ledger(all_receipts(dir));
  const std::vector<DriverView> drivers = drivers_of(folder);
  const std::vector<Json> ranks = live_files(folder, drivers);

  Json running = Json::array();
  std::optional<double> eta_s;
  std::string activity;
  std::map<std::string, std::string> running_on;  // cell key -> where
  for (const Json& live : ranks) {
    if (live.value("running", Json()).is_object()) {
      Json cell = live.at("running");
      cell["age_s"] = live.at("age_s");
      cell["host"] = live.value("host", "");
      running_on[cell.value("key", "")] = live.value("host", "");
      running.push_back(std::move(cell));
    }
    if (live.contains("eta_s") && live.at("eta_s").is_number()) {
      eta_s = std::max(eta_s.value_or(0), live.at("eta_s").get<double>());
    }
    if (const std::string now = live.value("activity", ""); !now.empty()) activity = now;
  }
  Json counts = zero_counts(), by_gpu = Json::object(), cells = Json::array();
  for (const auto& [key, cell] : spec.at("cells").items()) {
    const ResultEntry* entry = ledger.cell(key);
    const bool runs = running_on.contains(key);
    const char* state = state_of(entry, runs);
    const std::string gpu = cell.value("gpu", "unknown");
    if (!by_gpu.contains(gpu)) by_gpu[gpu] = zero_counts();
    for (Json* table : {&counts, &by_gpu[gpu]}) {
      for (const char* name : {"total", state}) {
        (*table)[name] = (*table)[name].get<std::int64_t>() + 1;
      }
    }
    std::int64_t passes = 0;
    for (const AttemptEntry& pass : ledger.passes(key, "timed")) passes += pass.status == "ok";
    Json why = nullptr;
    if (runs) {
      why = "runs on " + running_on.at(key);
    } else if (entry == nullptr) {
      why = why_left(ledger, key, gpu, ranks);
    } else if (entry->status != "ok") {
      why = why_ended(*entry);
    }
    cells.push_back({{"key", key},
                     {"index", cell.value("index", 0)},
                     {"method", cell.value("method", "")},
                     {"model", cell.value("model", "")},
                     {"variant", cell.value("variant", "")},
                     {"precision", cell.value("precision", "")},
                     {"gpu", gpu},
                     {"state", state},
                     {"status", entry == nullptr ? Json(nullptr) : Json(entry->status)},
                     {"reason", entry == nullptr || entry->reason.empty() ? Json(nullptr)
                                                                          : Json(entry->reason)},
                     {"passes_ok", passes},
                     {"why", why}});
  }
  std::sort(cells.begin(), cells.end(),
            [](const Json& a, const Json& b) { return a.at("index") < b.at("index"); });
  // `driver` is the one of the whole campaign, or of the shard that says most of its state.
  Json shards = Json::array();
  const DriverView* shown = &drivers.front();
  for (const DriverView& driver : drivers) {
    if (driver.is_running() && !shown->is_running()) shown = &driver;
    Json json = driver_json(driver);
    json["shard"] = driver.shard.empty() ? Json(nullptr) : Json(driver.shard);
    shards.push_back(std::move(json));
  }
  Json driver = driver_json(*shown);
  driver["activity"] = activity.empty() ? Json(nullptr) : Json(activity);
  return {{"campaign", dir.string()},
          {"spec_id", spec.value("spec_id", "")},
          {"driver", driver},
          {"drivers", shards},
          {"counts", counts},
          {"by_gpu", by_gpu},
          {"cells", cells},
          {"running", running},
          {"slurm", slurm_status(dir)},
          {"eta_s", eta_s ? Json(*eta_s) : Json(nullptr)}};
}

}  // namespace poros
