// SPDX-License-Identifier: Apache-2.0
#include "campaign/campaign.hpp"

#include <cstdio>
#include <system_error>

#include "base/clock.hpp"
#include "campaign/driver.hpp"
#include "campaign/rank_link.hpp"
#include "campaign/summary.hpp"
#include "cell/cell_process.hpp"
#include "receipts/hdf5_store.hpp"
#include "spec/spec_reader.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

constexpr const char* kWhatNow =
    "; every finished pass is kept: mend the cause and run the same command again";

/// The command that goes on, as it would be typed.
std::string same_command(const CampaignOptions& options) {
  std::string text;
  for (int i = 0; i < options.argc; ++i) {
    std::string word = options.argv[i];
    if (word == "--fresh") continue;  // it would begin anew
    if (word.find_first_of(" \t\n\"'\\$&|;<>()*?`") != std::string::npos || word.empty()) {
      std::string quoted = "'";
      for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
      word = quoted + "'";
    }
    text += (text.empty() ? "" : " ") + word;
  }
  return text.empty() ? "the same command" : text;
}

/// Makes what is derived from the records. A failure is told and changes no result.
std::string write_derived(const CampaignOptions& options, const BenchmarkSpec& spec,
                          const fs::path& dir, std::FILE* out) {
  try {
    static_cast<void>(gather(dir));
    if (!options.write_report) return {};
    options.write_report(dir, spec.reporting.html, spec.reporting.markdown);
    return (dir / (spec.reporting.html ? "report.html" : "report.md")).string();
  } catch (const std::exception& error) {
    fmt::print(out, "the report could not be made: {}; `poros bench gather {}` makes it again\n",
               error.what(), dir.string());
    return {};
  }
}

void print_end(const CampaignOptions& options, const CampaignResult& result, const fs::path& dir,
               const std::string& report, double wall_s) {
  if (options.json) {
    Json summary = summary_json(result, dir.string());
    summary["report"] = report.empty() ? Json(nullptr) : Json(report);
    summary["wall_s"] = wall_s;
    fmt::print("{}\n", dump_json(summary, 2));
    return;
  }
  if (!result.artifacts.empty()) fmt::print("\n{}", summary_table(result));
  if (!report.empty()) fmt::print("\nreport: {}\n", report);
  fmt::print("campaign: {} in {}\n", dir.string(), duration_text(wall_s));
}

CampaignResult drive(const CampaignOptions& options, const CampaignPlan& plan,
                     const CampaignFolder& folder, const Ranks& ranks) {
  const StopSignals signals;
  become_subreaper();
  const InstallPaths paths = find_install_paths(options.cell_program);
  Driver driver(options, plan, folder, paths, signals, ranks);
  if (ranks.session == nullptr || ranks.session->rank() == 0) {
    check_folder(folder, plan, options.fresh);
  }
  CampaignResult result = driver.run();
  if (!result.unmatched.empty()) {
    fmt::print(stderr, "no rank has a {}: the cells for it are left; run the same command on one\n",
               fmt::join(result.unmatched, " or a "));
  } else if (result.stopped) {
    fmt::print(stderr, "stopped by {}: {} of {} passes are done; to go on:\n  {}\n", signals.name(),
               result.passes_total - result.passes_left, result.passes_total,
               same_command(options));
  }
  return result;
}

}  // namespace

namespace {

int run_ranked(const CampaignOptions& options, RankLink* link, RankSession* session) {
  const bool leads = session == nullptr || session->rank() == 0;
  const double start_s = monotonic_s();
  BenchmarkSpec spec = read_spec(options.spec_path);
  if (options.n_passes) {
    if (*options.n_passes < 1) fail(Fault::usage, "--passes: at least 1 is expected");
    spec.training.n_passes = *options.n_passes;
  }
  const fs::path dir = options.output_dir.value_or(spec.reporting.output_dir);
  const CampaignPlan plan = make_plan(std::move(spec));
  for (const ComparisonGroup& group : plan.groups) {
    check_sources(plan.cells[group.cells.front()].spec);
  }
  const CampaignFolder folder(dir);
  Ranks ranks;
  ranks.session = session;
  if (link != nullptr) {
    ranks.placement = place_rank(plan.spec.device, link->local_rank(), link->local_size());
  }
  try {
    const CampaignResult result = drive(options, plan, folder, ranks);
    if (!leads) return kDone;
    std::FILE* out = options.json ? stderr : stdout;
    const std::string report = write_derived(options, plan.spec, dir, out);
    print_end(options, result, dir, report, monotonic_s() - start_s);
    return exit_code_of(result);
  } catch (const Error& error) {
    if (error.fault() != Fault::io) throw;
    throw Error(Fault::io, error.what() + std::string(kWhatNow));
  } catch (const fs::filesystem_error& error) {
    throw Error(Fault::io, error.what() + std::string(kWhatNow));
  }
}

}  // namespace

int run_campaign(const CampaignOptions& options) {
  if (!options.over_ranks) return run_ranked(options, nullptr, nullptr);
  const std::unique_ptr<RankLink> link = join_ranks();
  if (link == nullptr || link->size() == 1) return run_ranked(options, link.get(), nullptr);
  RankSession session(*link);
  if (link->rank() == 0) return run_ranked(options, link.get(), &session);
  try {
    return run_ranked(options, link.get(), &session);
  } catch (const Error& error) {
    // Rank 0 tells it; where it met the same failure it has done so already.
    try {
      static_cast<void>(session.ask({{"ask", "failed"},
                                     {"fault", static_cast<int>(error.fault())},
                                     {"message", error.what()}}));
      static_cast<void>(session.ask({{"ask", "leave"}}));
    } catch (const RunEnded&) {
    } catch (const Error&) {
    }
    return kDone;
  }
}

}  // namespace poros
