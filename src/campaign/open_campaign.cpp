// SPDX-License-Identifier: Apache-2.0
#include "campaign/open_campaign.hpp"

#include <cerrno>
#include <cstdlib>
#include <system_error>

#include <sched.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.hpp"
#include "base/files.hpp"
#include "base/json.hpp"
#include "receipts/shards.hpp"
#include "spec/spec_json.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

std::string random_id() {
  std::uint64_t bits = 0;
  if (::getrandom(&bits, sizeof bits, 0) != sizeof bits)
    fail_errno(Fault::environment, "getrandom");
  return fmt::format("{:016x}", bits);
}

void move_aside(const CampaignFolder& folder) {
  std::vector<fs::path> journals{folder.journal()};
  for (const std::string& name : shard_names(folder.dir())) {
    journals.push_back(shard_journal(folder.dir(), name));
  }
  for (const fs::path& journal : journals) {
    const LeaseView lease = view_lease(journal);
    if (lease.state != LeaseState::live) continue;
    fail(Fault::input, "{}: a driver is at work in it ({}); stop it before using --fresh",
         folder.dir().string(), lease.holder ? describe(*lease.holder) : "starting");
  }
  fs::path dir = folder.dir();
  if (!dir.has_filename()) dir = dir.parent_path();  // "out/" names out
  std::error_code error;
  int number = 1;
  while (fs::exists(dir.string() + "." + std::to_string(number), error)) ++number;
  fs::rename(dir, dir.string() + "." + std::to_string(number), error);
  if (error) fail(Fault::io, "{}: can't be moved aside: {}", dir.string(), error.message());
}

void check_same_spec(const CampaignFolder& folder, const CampaignPlan& plan) {
  const std::string origin = folder.spec().string();
  const Json old = read_campaign_spec(folder.spec());
  const std::vector<SpecDifference> differences =
      spec_differences(json_get<Json>(old, "spec", origin), plan.spec_json);
  if (differences.empty()) return;
  std::string list;
  for (const SpecDifference& difference : differences) {
    list += fmt::format("\n  {}: {} there, {} now", difference.path, difference.before,
                        difference.after);
  }
  fail(Fault::input,
       "{}: holds a campaign of another spec:{}\ngive another --output-dir, or --fresh to move it "
       "aside and begin anew",
       folder.dir().string(), list);
}

}  // namespace

Json read_campaign_spec(const fs::path& file) {
  const std::string origin = file.string();
  Json spec = parse_json(read_file(file), origin);
  const auto expect_object = [&](bool good, const std::string& what) {
    if (good) return;
    fail(Fault::input,
         "{}: {} is not a JSON object: the file was changed; restore it, or run the campaign's "
         "command again with --fresh",
         origin, what);
  };
  expect_object(spec.is_object(), "what is in it");
  for (const char* name : {"spec", "cells"}) {
    expect_object(spec.contains(name) && spec.at(name).is_object(), fmt::format("\"{}\"", name));
  }
  for (const auto& [key, cell] : spec.at("cells").items()) {
    expect_object(cell.is_object(), fmt::format("cells.{:.8}", key));
  }
  return spec;
}

std::int64_t usable_threads() {
  if (const char* value = std::getenv("POROS_THREADS"); value != nullptr && *value != '\0') {
    char* end = nullptr;
    const long threads = std::strtol(value, &end, 10);
    if (*end != '\0' || threads < 1 || threads > 4096) {
      fail(Fault::usage, "POROS_THREADS={}: a number from 1 to 4096 is expected", value);
    }
    return threads;
  }
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (::sched_getaffinity(0, sizeof mask, &mask) != 0) return 1;
  return std::max(1, CPU_COUNT(&mask));
}

void check_folder(const CampaignFolder& folder, const CampaignPlan& plan, bool fresh) {
  std::error_code error;
  const bool has_spec = fs::exists(folder.spec(), error);
  const bool has_journal =
      fs::exists(folder.journal(), error) || !shard_names(folder.dir()).empty();
  if (fresh && (has_spec || has_journal)) {
    move_aside(folder);
  } else if (has_spec) {
    check_same_spec(folder, plan);
  } else if (has_journal && !all_receipts(folder.dir()).empty()) {  // empty: killed at its start
    fail(Fault::input,
         "{}: has a results.jsonl but no spec.json, so nobody can tell what it measured; give "
         "another --output-dir, or --fresh to move it aside",
         folder.dir().string());
  }
}

CampaignIdentity write_identity(const CampaignFolder& folder, const CampaignPlan& plan) {
  CampaignIdentity identity;
  std::error_code error;
  std::string old_text;
  if (fs::exists(folder.spec(), error)) {
    check_same_spec(folder, plan);  // again, now that nobody else can change it
    const std::string origin = folder.spec().string();
    old_text = read_file(folder.spec());
    const Json old = parse_json(old_text, origin);
    identity.campaign_id = json_get<std::string>(old, "campaign_id", origin);
    identity.created_at = json_get<std::string>(old, "created_at", origin);
    identity.threads = json_get<std::int64_t>(old, "threads", origin);
  } else {
    identity = {random_id(), utc_now(), usable_threads()};
  }
  Json cells = Json::object();
  for (std::size_t i = 0; i < plan.cells.size(); ++i) {
    const PlannedCell& cell = plan.cells[i];
    cells[cell.key] = {{"file", cell.file},
                       {"index", i},
                       {"group_key", cell.group},
                       {"method", cell.spec.method},
                       {"model", cell.model},
                       {"precision", cell.spec.precision},
                       {"gpu", cell.spec.hardware.gpu_name}};
    if (!cell.spec.variant.empty()) cells[cell.key]["variant"] = cell.spec.variant;
  }
  const Json spec{{"v", 1},
                  {"spec_id", plan.spec.spec_id},
                  {"spec_sha256", plan.spec_sha256},
                  {"spec", plan.spec_json},
                  {"cells", cells},
                  {"campaign_id", identity.campaign_id},
                  {"created_at", identity.created_at},
                  {"threads", identity.threads}};
  const std::string text = dump_json(spec, 1) + "\n";
  if (!old_text.empty()) {
    if (text != old_text) write_file_durably(folder.spec(), text);
    return identity;
  }
  // Several shards can begin at one moment: the first to give the file its name is followed.
  const fs::path made = folder.dir() / (".spec.json." + random_id());
  write_file_durably(made, text);
  const int linked = ::link(made.c_str(), folder.spec().c_str());
  const int number = errno;
  if (linked != 0 && number != EEXIST) {
    fs::rename(made, folder.spec());  // a file system without hard links
    sync_folder(folder.dir());
    return identity;
  }
  fs::remove(made);
  sync_folder(folder.dir());
  return linked == 0 ? identity : write_identity(folder, plan);
}

}  // namespace poros
