// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include <CLI/CLI.hpp>
#include <unistd.h>

#include "base/error.hpp"
#include "campaign/arms.hpp"
#include "cli/command.hpp"
#include "cli/output.hpp"

namespace poros {
namespace {

/// Becomes poros-cell; comes back only with an error.
int become_cell(const std::string& command, const std::vector<std::string>& arguments) {
  const std::string program = find_install_paths({}).cell_program.string();
  std::vector<std::string> words = {program, command};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  flush_stdout();
  ::execv(program.c_str(), argv.data());
  fail_errno(Fault::environment, program + " can't be started");
}

}  // namespace

void add_eval(CLI::App& parent, Invocation& invocation) {
  CLI::App* command = parent.add_subcommand(
      "eval", "Loss and perplexity of a model, with or without an adapter (poros-cell eval)");
  command->set_help_flag();  // --help is poros-cell's
  command->prefix_command();
  command->callback([&invocation, command] {
    invocation.run = [arguments = command->remaining()] { return become_cell("eval", arguments); };
  });
}

}  // namespace poros
