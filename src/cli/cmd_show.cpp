// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include <CLI/CLI.hpp>

#include "campaign/campaign.hpp"
#include "cli/command.hpp"

namespace poros {

void add_show(CLI::App& parent, Invocation& invocation) {
  struct Options {
    std::string dir, key;
    bool json = false;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* command = parent.add_subcommand("show", "The record of one cell");
  command->add_option("DIR", options->dir, "Campaign folder")->required();
  command
      ->add_option("KEY", options->key,
                   "Cell key, its first 4 or more digits, or the name of a record")
      ->required();
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(R"(Examples:
  poros bench show bench_output/demo-cpu 1f3a
  poros bench show bench_output/demo-cpu poros_kjv-qwen2_nf4.json --json
)");
  command->callback([&invocation, options] {
    invocation.run = [options] { return print_cell(options->dir, options->key, options->json); };
  });
}

void add_logs(CLI::App& parent, Invocation& invocation) {
  struct Options {
    std::string dir, key;
    std::optional<std::int64_t> pass;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* command = parent.add_subcommand("logs", "What the processes of one cell printed");
  command->add_option("DIR", options->dir, "Campaign folder")->required();
  command
      ->add_option("KEY", options->key,
                   "Cell key, its first 4 or more digits, or the name of a record")
      ->required();
  command->add_option("--pass", options->pass, "That pass, from 0, instead of the last attempt");
  command->footer(R"(Example:
  poros bench logs bench_output/demo-cpu 1f3a
)");
  command->callback([&invocation, options] {
    invocation.run = [options] { return print_log(options->dir, options->key, options->pass); };
  });
}

}  // namespace poros
