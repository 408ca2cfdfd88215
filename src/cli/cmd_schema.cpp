// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include <CLI/CLI.hpp>

#include "cli/command.hpp"
#include "cli/output.hpp"
#include "spec/schema.hpp"

namespace poros {

void add_schema(CLI::App& parent, Invocation& invocation) {
  CLI::App* command = parent.add_subcommand("schema", "Formats: the keys of a spec");
  command->require_subcommand(1);
  command->footer(R"(Examples:
  poros schema spec           every key: type, default, range, unit, meaning
  poros schema spec --json    a JSON Schema for editors
)");
  const auto json = std::make_shared<bool>(false);
  CLI::App* spec = command->add_subcommand("spec", "The YAML that you write");
  spec->add_flag("--json", *json, "Print a JSON Schema (draft 2020-12)");
  spec->callback([&invocation, json] {
    invocation.run = [json] {
      if (*json) {
        print_json(schema_json());
      } else {
        print_text(schema_markdown());
      }
      return 0;
    };
  });
}

}  // namespace poros
