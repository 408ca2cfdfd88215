// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include <CLI/CLI.hpp>

#include "campaign/rerun.hpp"
#include "cli/command.hpp"

namespace poros {

void add_rerun(CLI::App& parent, Invocation& invocation) {
  const auto options = std::make_shared<RerunOptions>();
  CLI::App* command =
      parent.add_subcommand("rerun", "Measure one cell again, from its record alone");
  command->add_option("DIR", options->dir, "Campaign folder; nothing in it is changed")->required();
  command
      ->add_option("KEY", options->key,
                   "Cell key, its first 4 or more digits, or the name of a record")
      ->required();
  CLI::Option* file =
      command->add_option("-o,--output", options->output_file, "Write the new RunArtifact here");
  command
      ->add_option("--into", options->into, "Keep artifact, pass records and logs in a new folder")
      ->excludes(file);
  command->add_option("--model", options->model_dir,
                      "Checkpoint folder, where it is no longer where the record says");
  command->add_option("--passes", options->n_passes, "Instead of as many as the record has")
      ->check(CLI::Range(1, 1000));
  command->add_flag("--allow-hardware-mismatch", options->allow_hardware_mismatch,
                    "Run on another GPU than the record's spec names");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(R"(Examples:
  poros bench rerun bench_output/demo-cpu 1f3a
  poros bench rerun campaigns/h200 poros_qwen2.5-7b_nf4.json --into again

Settings, token file, initial adapter and CPU threads are the record's; inputs that are gone are made
again and their sha256 is checked. Prints the recorded and the new figures with their ratio. Exit
code 1: it ended otherwise, or did other work.
)");
  command->callback([&invocation, options] {
    invocation.run = [&invocation, options] {
      options->argc = invocation.argc;
      options->argv = invocation.argv;
      return rerun_cell(*options);
    };
  });
}

}  // namespace poros
