// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <cmath>
#include <memory>

#include <CLI/CLI.hpp>

#include "analysis/report.hpp"
#include "base/error.hpp"
#include "campaign/campaign.hpp"
#include "cli/command.hpp"
#include "cli/output.hpp"
#include "cli/plan_text.hpp"
#include "spec/schema.hpp"
#include "spec/spec_reader.hpp"

namespace poros {
namespace {

struct RunOptions {
  CampaignOptions campaign;
  std::string spec, output_dir;
  std::int64_t passes = 0;
  bool has_passes = false, dry_run = false, resume = false;
};

int dry_run(const RunOptions& options) {
  BenchmarkSpec spec = read_spec(options.spec);
  if (options.has_passes) spec.training.n_passes = options.passes;
  if (!options.output_dir.empty()) spec.reporting.output_dir = options.output_dir;
  if (options.campaign.json) {
    print_json(plan_json(spec));
  } else {
    print_text(plan_text(spec));
  }
  return kDone;
}

int run(RunOptions& options) {
  if (options.has_passes) {
    const SchemaKey& key = schema_key("training.n_passes");
    if (const auto wrong = complaint(key, options.passes)) {
      fail(Fault::usage, "--passes: {}; expected {}", *wrong, expectation(key));
    }
    options.campaign.n_passes = options.passes;
  }
  if (options.dry_run) return dry_run(options);
  options.campaign.spec_path = options.spec;
  if (!options.output_dir.empty()) options.campaign.output_dir = options.output_dir;
  options.campaign.write_report = [](const std::filesystem::path& dir, bool html, bool markdown) {
    write_report(dir, dir, html, markdown);
  };
  return run_campaign(options.campaign);
}

/// An unset variable of a shell is no value.
std::string not_empty(const std::string& text) {
  return text.empty() ? "the value is empty" : "";
}

std::string positive_hours(const std::string& text) {
  double hours = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), hours);
  const bool good = parsed.ec == std::errc() && parsed.ptr == text.data() + text.size() &&
                    std::isfinite(hours) && hours > 0;
  return good ? "" : "expected a number of hours above 0, such as 3.5";
}

/// Both commands run a campaign: `run` in this process, `matrix` over the ranks of a job.
void add_campaign(CLI::App& parent, Invocation& invocation, const char* name, const char* purpose,
                  const char* footer, bool over_ranks) {
  const auto options = std::make_shared<RunOptions>();
  options->campaign.argc = invocation.argc;
  options->campaign.argv = invocation.argv;
  options->campaign.over_ranks = over_ranks;
  CLI::App* command = parent.add_subcommand(name, purpose);
  command->add_option("SPEC", options->spec, "The YAML file")->required();
  command
      ->add_option("-o,--output-dir", options->output_dir,
                   "Campaign folder, instead of reporting.output_dir")
      ->check(not_empty);
  CLI::Option* passes = command->add_option("-p,--passes", options->passes,
                                            "Passes a cell, instead of training.n_passes");
  CLI::Option* resume =
      command->add_flag("--resume", options->resume, "Go on (the same as without it)");
  command->add_flag("--fresh", options->campaign.fresh, "Move an older run aside and begin anew")
      ->excludes(resume);
  command->add_flag("--retry", options->campaign.retry,
                    "Run cells again that ended in error or out of memory");
  command
      ->add_option("--only", options->campaign.only,
                   "Run these cells alone: method=, model=, precision=, gpu= or the beginning "
                   "of a cell key; may be given several times")
      ->allow_extra_args(false);
  command
      ->add_option("--max-hours", options->campaign.max_hours,
                   "Begin no pass that would end later; exit code 75")
      ->check(positive_hours);
  command
      ->add_option("--max-failures", options->campaign.max_failures,
                   "End after so many failed cells")
      ->check(CLI::Range(1, 1000000));
  command->add_flag_callback(
      "--fail-fast", [options] { options->campaign.max_failures = 1; },
      "End after the first failed cell");
  command
      ->add_option("--shard-name", options->campaign.shard_name,
                   "Write a journal of one's own, shards/NAME: several drivers may then work on "
                   "one campaign; `bench gather` joins them")
      ->check(not_empty);
  command
      ->add_option("--shard", options->campaign.shard,
                   "I/N, I from 0: the I-th of N parts of each GPU type's groups")
      ->check(not_empty);
  if (over_ranks) {
    command->add_flag("--exclusive-host", options->campaign.exclusive_host,
                      "Cells of poros and accelerate_offload run alone on their host");
  }
  command->add_flag("--dry-run", options->dry_run, "List the cells; run and create nothing");
  command->add_flag("--plain", options->campaign.plain, "Plain lines, also on a terminal");
  command->add_flag("--allow-hardware-mismatch", options->campaign.allow_hardware_mismatch,
                    "Measure on another GPU than the spec names; records say so");
  command->add_flag("--allow-mixed-builds", options->campaign.allow_mixed_builds,
                    "Go on although poros-cell or the Python runners are another build");
  command->add_flag("--json", options->campaign.json, "Print one JSON object at the end");
  command->footer(footer);
  command->callback([&invocation, options, passes] {
    options->has_passes = passes->count() > 0;
    invocation.run = [options] { return run(*options); };
  });
}

}  // namespace

void add_run(CLI::App& parent, Invocation& invocation) {
  add_campaign(parent, invocation, "run",
               "Run the campaign of a spec, or go on where the same command stopped",
               R"(Examples:
  poros bench run configs/bench/demo_cpu.yaml
  poros bench run my.yaml -o campaigns/mine --passes 5
  poros bench run my.yaml --fresh

Each pass of a cell is a fresh process. Finished passes are kept: after Ctrl-C, a crash or a full
disk the same command goes on. A spec that was changed is refused with the keys that differ.

Exit codes: 0 done; 1 a cell ended in error or parity failed; 2 wrong input; 75 stopped, go on with
the same command.
)",
               false);
}

void add_matrix(CLI::App& parent, Invocation& invocation) {
  add_campaign(parent, invocation, "matrix",
               "Run the campaign of a spec over the ranks of an MPI job, one rank a GPU",
               R"(Examples:
  mpirun -n 4 poros bench matrix configs/bench/demo_matrix.yaml
  srun --mpi=pmix poros bench matrix my.yaml -o campaigns/mine
  poros bench matrix configs/bench/demo_matrix.yaml      one rank, no launcher

Rank 0 hands out comparison groups, longest first, to ranks whose GPU is the type that the cells
name, and works on some itself. Each rank runs its cells as fresh processes that see its GPU alone.
Finished passes are kept: after any crash the same command goes on, over more or fewer ranks too.

Exit codes: 0 done; 1 a cell ended in error, parity failed or a rank was lost; 2 wrong input;
75 stopped, or cells are left for GPU types that no rank has: go on with the same command.
)",
               true);
}

}  // namespace poros
