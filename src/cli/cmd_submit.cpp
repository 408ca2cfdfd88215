// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <memory>

#include <CLI/CLI.hpp>

#include "base/error.hpp"
#include "campaign/slurm_submit.hpp"
#include "cli/command.hpp"

namespace poros {
namespace {

std::filesystem::path this_program() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) fail(Fault::environment, "/proc/self/exe: {}", error.message());
  return program;
}

}  // namespace

void add_submit(CLI::App& parent, Invocation& invocation) {
  struct Options {
    SubmitOptions submit;
    std::string spec, output_dir;
    bool retry = false, exclusive_host = false;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* command =
      parent.add_subcommand("submit", "Run a campaign as batch jobs of a Slurm cluster");
  command->add_option("SPEC", options->spec, "The YAML file: a spec or a matrix")->required();
  command
      ->add_option("-c,--cluster", options->submit.cluster,
                   "Cluster profile: a name (slurm/clusters) or a path")
      ->required();
  command->add_option("-o,--output-dir", options->output_dir,
                      "Campaign folder, instead of reporting.output_dir");
  command->add_flag("--dry-run", options->submit.dry_run,
                    "Print the scripts; create and submit nothing");
  command->add_flag("--wait", options->submit.wait, "Wait until the jobs have ended");
  command->add_flag("--single-job", options->submit.single_job,
                    "One job, one MPI world, over nodes of all GPU types");
  command
      ->add_option("--only", options->submit.only, "As for `bench matrix`: run these cells alone")
      ->allow_extra_args(false);
  command->add_flag("--retry", options->retry,
                    "Run cells again that ended in error or out of memory");
  command->add_flag("--exclusive-host", options->exclusive_host,
                    "Cells of poros and accelerate_offload run alone on their host");
  command->add_flag("--json", options->submit.json, "Print one JSON object");
  command->footer(R"(Examples:
  poros bench submit configs/bench/launch_matrix.yaml --cluster four_types --dry-run
  poros bench submit configs/bench/launch_matrix.yaml --cluster four_types
  poros bench status DIR                 the jobs, and what runs in them
  poros bench cancel DIR                 end them; submitting again goes on

One job (or array) a GPU type, and one that gathers and reports after them. All are submitted or
none. Jobs that are still queued are named, and nothing is submitted twice. docs/slurm.md has the
profile's keys.

Exit codes: 0 submitted (with --wait: done); 1 Slurm refused, or cells failed; 2 wrong input.
)");
  command->callback([&invocation, options] {
    invocation.run = [options] {
      options->submit.spec = options->spec;
      if (!options->output_dir.empty()) options->submit.output_dir = options->output_dir;
      options->submit.program = this_program();
      std::vector<std::string>& words = options->submit.matrix_arguments;
      if (options->retry) words.emplace_back("--retry");
      if (options->exclusive_host) words.emplace_back("--exclusive-host");
      for (const std::string& condition : options->submit.only) {
        words.insert(words.end(), {"--only", condition});
      }
      return submit_campaign(options->submit);
    };
  });
}

}  // namespace poros
