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
#include "receipts/shards.hpp"
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
  // A shard leaves other GPU types to other shards, unless it found nothing for its own.
  const bool is_shard = !options.shard_name.empty();
  if (is_shard && result.passes_total > result.passes_left) result.unmatched.clear();
  const std::string so_far = fmt::format("{} of {} passes are done; to go on:\n  {}",
                                         result.passes_total - result.passes_left,
                                         result.passes_total, same_command(options));
  if (result.failed_cells > 0) {
    fmt::print(stderr, "ended after {} failed cell{}: {}\n", result.failed_cells,
               result.failed_cells == 1 ? "" : "s", so_far);
  } else if (result.stopped) {
    fmt::print(stderr, "stopped by {}: {}\n", signals.name(), so_far);
  } else if (result.out_of_time) {
    fmt::print(stderr, "no pass that is left would end in time: {}\n", so_far);
  }
  if (!result.unmatched.empty()) {
    fmt::print(
        stderr,
        "no usable rank has a {}: the cells for it are left; run the same command on one{}\n",
        fmt::join(result.unmatched, " or a "),
        ranks.session == nullptr
            ? ""
            : ", or with --retry where its GPUs were set aside for failing repeatedly");
  }
  return result;
}

}  // namespace

namespace {

void check_shard_options(const CampaignOptions& options) {
  if (options.shard_name.empty()) {
    if (options.shard.empty()) return;
    fail(Fault::usage, "--shard {} needs --shard-name NAME, the name of this part's own journal",
         options.shard);
  }
  static_cast<void>(shard_journal(".", options.shard_name));  // a name that can be a folder's
  if (options.fresh) {
    fail(Fault::usage,
         "--fresh with --shard-name: it would move aside what the other shards have done; start "
         "once with --fresh and without a shard, or remove the campaign folder");
  }
}

int run_ranked(const CampaignOptions& options, RankLink* link, RankSession* session) {
  const bool leads = session == nullptr || session->rank() == 0;
  const double start_s = monotonic_s();
  BenchmarkSpec spec = read_spec(options.spec_path);
  if (options.n_passes) {
    if (*options.n_passes < 1) fail(Fault::usage, "--passes: at least 1 is expected");
    spec.training.n_passes = *options.n_passes;
  }
  const fs::path dir = options.output_dir.value_or(spec.reporting.output_dir);
  check_shard_options(options);
  const CampaignPlan plan = make_plan(std::move(spec));
  for (const ComparisonGroup& group : plan.groups) {
    check_sources(plan.cells[group.cells.front()].spec);
  }
  const CampaignFolder folder(dir);
  Ranks ranks;
  ranks.session = session;
  ranks.placement = link == nullptr
                        ? place_rank(plan.spec.device, 0, 1)
                        : place_rank(plan.spec.device, link->local_rank(), link->local_size());
  try {
    const CampaignResult result = drive(options, plan, folder, ranks);
    if (!leads) return kDone;
    std::FILE* out = options.json ? stderr : stdout;
    std::string report;
    if (options.shard_name.empty()) {
      report = write_derived(options, plan.spec, dir, out);
    } else {
      fmt::print(out, "shard {}: `poros bench gather {}` joins the shards\n", options.shard_name,
                 dir.string());
    }
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
  const std::unique_ptr<RankLink> link = join_ranks(5 * options.rank_silent_s);
  if (link == nullptr || link->size() == 1) return run_ranked(options, link.get(), nullptr);
  RankSession session(*link, options.rank_silent_s);
  if (link->rank() == 0) {
    try {
      return run_ranked(options, link.get(), &session);
    } catch (const Error& error) {
      // Said before the session ends: it aborts the job where a rank was lost.
      fmt::print(stderr, "{}\n", error.what());
      return error.exit_code();
    }
  }
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
      fmt::print(stderr, "{}\n", error.what());
      return kFailed;
    }
    return kDone;
  }
}

}  // namespace poros
