// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include <CLI/CLI.hpp>

#include "cli/command.hpp"
#include "cli/output.hpp"
#include "cli/plan_text.hpp"
#include "spec/spec_reader.hpp"

namespace poros {

void add_plan(CLI::App& parent, Invocation& invocation) {
  struct Options {
    std::string spec;
    bool json = false, all = false;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* command =
      parent.add_subcommand("plan",
                            "Check a spec and list its cells with their predicted memory and "
                            "time; runs and creates nothing");
  command->add_option("SPEC", options->spec, "The YAML file")->required();
  command->add_flag("--all", options->all, "List the cells of a large matrix too");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(R"(Example:
  poros bench plan configs/bench/demo_cpu.yaml

A key names the work of a cell: same key, same work. Exit code 2 and file:line:column when the spec
is wrong.
)");
  command->callback([&invocation, options] {
    invocation.run = [options] {
      const BenchmarkSpec spec = read_spec(options->spec);
      if (options->json) {
        print_json(plan_json(spec));
      } else {
        print_text(plan_text(spec, options->all));
      }
      return 0;
    };
  });
}

}  // namespace poros
