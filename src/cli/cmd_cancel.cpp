// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include <CLI/CLI.hpp>

#include "campaign/slurm_submit.hpp"
#include "cli/command.hpp"

namespace poros {

void add_cancel(CLI::App& parent, Invocation& invocation) {
  struct Options {
    std::string dir;
    bool json = false;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* command = parent.add_subcommand("cancel", "End the batch jobs of a campaign");
  command->add_option("DIR", options->dir, "Campaign folder")->required();
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(R"(Example:
  poros bench cancel bench_output/launch

The passes that run are lost; every finished one is kept, and `poros bench submit` goes on.
)");
  command->callback([&invocation, options] {
    invocation.run = [options] { return cancel_campaign(options->dir, options->json); };
  });
}

}  // namespace poros
