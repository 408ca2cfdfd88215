// SPDX-License-Identifier: Apache-2.0
// bench show and bench logs: one cell's record and log for people.
#include <cstdio>
#include <system_error>

#include "base/files.hpp"
#include "campaign/campaign.hpp"
#include "campaign/folder.hpp"
#include "campaign/ledger.hpp"
#include "campaign/rerun.hpp"
#include "campaign/summary.hpp"
#include "receipts/journal.hpp"
#include "receipts/run_artifact.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kShortestKey = 4;

void add_row(std::vector<std::vector<std::string>>& rows, const std::string& name,
             const Json& value) {
  if (value.is_array() && !value.empty() && value.front().is_string()) {
    rows.push_back(
        {name, fmt::format("{}", fmt::join(value.get<std::vector<std::string>>(), "; "))});
    return;
  }
  if (value.is_null() || value.is_object() || value.is_array()) return;
  if (value.is_string() && value.get<std::string>().empty()) return;
  rows.push_back({name, value.is_string() ? value.get<std::string>() : dump_json(value)});
}

}  // namespace

std::string find_cell_key(const CampaignFolder& folder, const std::string& text) {
  std::error_code error;
  if (!fs::exists(folder.spec(), error)) {
    fail(Fault::input, "{}: no campaign: there is no spec.json in it", folder.dir().string());
  }
  const Json spec = parse_json(read_file(folder.spec()), folder.spec().string());
  std::vector<std::string> found;
  std::string known;
  for (const auto& [key, cell] : spec.at("cells").items()) {
    const std::string file = cell.value("file", "");
    known += fmt::format("\n  {:.12}  {}", key, file);
    const bool begins = text.size() >= kShortestKey && key.compare(0, text.size(), text) == 0;
    if (begins || file == text || file == text + ".json") found.push_back(key);
  }
  if (found.size() == 1) return found.front();
  fail(Fault::input, "{}: {} cell with the key \"{}\"; there are:{}", folder.dir().string(),
       found.empty() ? "no" : "more than one", text, known);
}

int print_cell(const fs::path& dir, const std::string& key, bool json) {
  const CampaignFolder folder(dir);
  const std::string cell_key = find_cell_key(folder, key);
  const Ledger ledger(read_journal(folder.journal()).receipts);
  const ResultEntry* entry = ledger.cell(cell_key);
  std::vector<std::vector<std::string>> rows;
  if (entry != nullptr) {
    const fs::path path = child_path(dir, entry->path);
    const Json artifact = parse_json(read_file(path), path.string());
    if (json) {
      fmt::print("{}\n", dump_json(artifact, 2));
      return kDone;
    }
    for (const auto& [name, value] : artifact.items()) add_row(rows, name, value);
    fmt::print("{}\n", path.string());
  } else if (json) {
    fail(Fault::input, "{}: the cell {:.12} has no record yet", dir.string(), cell_key);
  } else {
    fmt::print("cell {}: not finished\n", cell_key);
  }
  fmt::print("{}\npasses:\n", aligned(rows));
  for (const char* purpose : {"timed", "parity"}) {
    for (const AttemptEntry& pass : ledger.passes(cell_key, purpose)) {
      fmt::print("  {} {} attempt {}: {}{}  {}\n", purpose, pass.pass, pass.attempt, pass.status,
                 pass.reason.empty() ? "" : "/" + pass.reason, pass.path);
    }
  }
  return kDone;
}

int print_log(const fs::path& dir, const std::string& key, std::optional<std::int64_t> pass) {
  const CampaignFolder folder(dir);
  const std::string cell_key = find_cell_key(folder, key);
  // The files themselves are asked, not the journal: the log of a running pass counts too.
  fs::path newest;
  fs::file_time_type newest_time{};
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir / "logs" / cell_key, error)) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() != ".log") continue;
    if (pass &&
        name.compare(0, std::to_string(*pass).size() + 1, std::to_string(*pass) + ".") != 0) {
      continue;
    }
    const auto time = entry.last_write_time(error);
    if (newest.empty() || time >= newest_time) {
      newest = entry.path();
      newest_time = time;
    }
  }
  if (newest.empty()) {
    fail(Fault::input, "{}: no log of the cell {:.12}{}", dir.string(), cell_key,
         pass ? fmt::format(", pass {}", *pass) : "");
  }
  fmt::print(stderr, "{}\n", newest.string());
  const std::string text = read_file(newest);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return kDone;
}

}  // namespace poros
