// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "base/error.hpp"
#include "campaign/doctor.hpp"
#include "cli/command.hpp"
#include "cli/output.hpp"
#include "model/open_base.hpp"

namespace poros {
namespace {

void print_findings(const std::vector<Finding>& findings, bool can_run) {
  TextTable table{{"part", "what", "found", "health"}, {}, "llll"};
  std::string group;
  for (const Finding& finding : findings) {
    table.rows.push_back({finding.group == group ? "" : finding.group, finding.name, finding.value,
                          finding.health == Health::ok ? "" : name_of(finding.health)});
    group = finding.group;
  }
  print_text(table.text());
  std::string text;
  for (const Finding& finding : findings) {
    if (finding.mend.empty()) continue;
    text += fmt::format("{} ({}): {}\n", name_of(finding.health), finding.name, finding.mend);
  }
  if (!text.empty()) print_text("\n" + text);
  print_text(can_run ? "\nThis machine can run Poros Bench.\n"
                     : "\nThis machine can't run Poros Bench until the errors above are mended.\n");
}

}  // namespace

void add_doctor(CLI::App& parent, Invocation& invocation) {
  struct Options {
    std::string results = ".";
    bool quick = false, json = false;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* command =
      parent.add_subcommand("doctor", "What this machine can run, and what is wrong with it");
  command->add_option("--results", options->results, "Folder that campaigns will be written to")
      ->capture_default_str();
  command->add_flag("--quick", options->quick, "Measure nothing: no copy rate, no disk rate");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(R"(Example:
  poros doctor
  poros doctor --json | jq '.findings[] | select(.health == "error")'

Nothing is installed or changed. Exit code 1 when something keeps this machine from running.
)");
  command->callback([&invocation, options] {
    invocation.run = [options] {
      const std::vector<Finding> findings = examine_machine(
          {find_install_paths({}), default_cache_folder(), options->results, !options->quick});
      const Json json = to_json(findings);
      const bool can_run = json.at("can_run").get<bool>();
      if (options->json) {
        print_json(json);
      } else {
        print_findings(findings, can_run);
      }
      return can_run ? kDone : kFailed;
    };
  });
}

}  // namespace poros
