// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include <CLI/CLI.hpp>

#include "cli/artifact_schema.hpp"
#include "cli/command.hpp"
#include "cli/output.hpp"
#include "cli/train_events_schema.hpp"
#include "spec/schema.hpp"
#include "spec/train_config.hpp"

namespace poros {

void add_schema(CLI::App& parent, Invocation& invocation) {
  CLI::App* command = parent.add_subcommand("schema", "Formats: what you write and what you get");
  command->require_subcommand(1);
  command->footer(R"(Examples:
  poros schema spec           every key: type, default, range, unit, meaning
  poros schema spec --json    a JSON Schema for editors
  poros schema train          every key of a config for poros train
  poros schema events         every field of a training's events.jsonl
  poros schema artifact       every field of a cell's record
)");
  const auto json = std::make_shared<bool>(false);
  const auto add = [&](const char* name, const char* text, std::string (*for_people)(),
                       Json (*for_programs)()) {
    CLI::App* kind = command->add_subcommand(name, text);
    kind->add_flag("--json", *json, "Print a JSON Schema (draft 2020-12)");
    kind->callback([&invocation, json, for_people, for_programs] {
      invocation.run = [json, for_people, for_programs] {
        if (*json) {
          print_json(for_programs());
        } else {
          print_text(for_people());
        }
        return 0;
      };
    });
  };
  add("spec", "The YAML that you write", &schema_markdown, &schema_json);
  add("train", "The config of poros train", &train_schema_markdown, &train_schema_json);
  add("events", "Lines of a training's events.jsonl", &events_markdown, &events_json);
  add("artifact", "The record of a cell", &artifact_markdown, &artifact_json);
}

}  // namespace poros
