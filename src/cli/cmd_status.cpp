// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include <CLI/CLI.hpp>

#include "campaign/campaign.hpp"
#include "cli/command.hpp"

namespace poros {

void add_status(CLI::App& parent, Invocation& invocation) {
  struct Options {
    std::string dir;
    bool watch = false, json = false, why = false;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* command = parent.add_subcommand("status", "What a campaign is doing now");
  command->add_option("DIR", options->dir, "Campaign folder")->required();
  command->add_flag("-w,--watch", options->watch, "Again every 2 s until the campaign ends");
  command->add_flag("--why", options->why, "What keeps each cell that is not done");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(R"(Example:
  poros bench status bench_output/demo-cpu --watch
  poros bench status bench_output/demo-cpu --why

Reads files alone, from any machine that sees the folder, and disturbs nothing.
)");
  command->callback([&invocation, options] {
    invocation.run = [options] {
      return print_status(options->dir, options->watch, options->json, options->why);
    };
  });
}

}  // namespace poros
