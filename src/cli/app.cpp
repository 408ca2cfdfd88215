// SPDX-License-Identifier: Apache-2.0
#include "cli/app.hpp"

#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/error.hpp"
#include "base/json.hpp"
#include "cell/environment.hpp"
#include "cli/command.hpp"
#include "cli/output.hpp"
#include "spec/text_form.hpp"

namespace poros {
namespace {

constexpr const char* kPurpose =
    R"(Poros Bench: which QLoRA method trains your model on this card, in how much memory, how fast,
and is the lean one really the same training? One YAML spec makes every arm; each number in the
report points to the record it came from.)";

constexpr const char* kFooter = R"(Examples:
  poros bench plan configs/bench/demo_cpu.yaml     check a spec and list its cells
  poros bench run configs/bench/demo_cpu.yaml      run it, or go on where it stopped
  poros schema spec                                every key of a spec

Exit codes:
  0   done (a cell that ran out of memory or was skipped is a result)
  1   it ran, but a cell ended in error or a gate failed
  2   wrong use or wrong input; nothing was created
  75  stopped early on request; the same command goes on
)";

std::string version_text() {
  const BuildInfo& build = build_info();
  std::string text = "poros " + build.version;
  if (!build.git_commit.empty()) {
    text += fmt::format(" (commit {}{})", build.git_commit.substr(0, 12),
                        build.git_dirty ? ", with local changes" : "");
  }
  return text;
}

bool wants_json(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--json") return true;
  }
  return false;
}

void print_error(const std::string& message, int exit_code, bool json) {
  const std::string text =
      json ? dump_json({{"error", message}, {"exit_code", exit_code}}) : "poros: error: " + message;
  std::fprintf(stderr, "%s\n", text.c_str());
}

/// The command that the parser got to, to name its help.
const CLI::App* innermost(const CLI::App* app) {
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  return app;
}

std::string full_name(const CLI::App* app) {
  return app->get_parent() == nullptr ? "poros"
                                      : full_name(app->get_parent()) + " " + app->get_name();
}

/// What is wrong with the command line, what was meant, where help is.
std::string usage_message(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* at = innermost(&app);
  std::string message = error.what();
  std::vector<std::string> names;
  for (const CLI::App* command : at->get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  for (const CLI::Option* option : at->get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const std::string& extra : app.remaining(true)) {
    const std::string near = nearest(extra, names);
    message = fmt::format("\"{}\" is not known to \"{}\"", printable(extra), full_name(at));
    if (!near.empty()) message += fmt::format("; did you mean \"{}\"?", near);
    break;
  }
  return fmt::format("{}\nSee: {} --help", message, full_name(at));
}

void add_commands(CLI::App& app, Invocation& invocation) {
  CLI::App* bench = app.add_subcommand(
      "bench", "Campaigns: run a spec, watch it, look at its records, make its reports");
  bench->require_subcommand(1);
  bench->footer(R"(Examples:
  poros bench run my.yaml                run a spec, or go on where it stopped
  poros bench status my_campaign -w      watch it from another terminal
  poros bench show my_campaign 1f3a      the record of one cell
  poros bench report my_campaign         make the reports anew
  poros bench compare last_week today    cell by cell, with a verdict
  poros bench verify my_campaign         trace every number to its record
)");
  add_run(*bench, invocation);
  add_matrix(*bench, invocation);
  add_plan(*bench, invocation);
  add_status(*bench, invocation);
  add_show(*bench, invocation);
  add_logs(*bench, invocation);
  add_rerun(*bench, invocation);
  add_gather(*bench, invocation);
  add_report(*bench, invocation);
  add_compare(*bench, invocation);
  add_verify(*bench, invocation);
  add_submit(*bench, invocation);
  add_cancel(*bench, invocation);
  add_fetch(app, invocation);
  add_prepare(app, invocation);
  add_check(app, invocation);
  add_doctor(app, invocation);
  add_profile(app, invocation);
  add_cache(app, invocation);
  add_train(app, invocation);
  add_eval(app, invocation);
  add_generate(app, invocation);
  add_export_model(app, invocation);
  add_schema(app, invocation);
}

int parse_and_run(int argc, char** argv, bool json) {
  CLI::App app(kPurpose, "poros");
  app.footer(kFooter);
  app.set_version_flag("-V,--version", version_text(), "Print version and commit");
  app.require_subcommand(1);
  app.get_formatter()->column_width(30);
  Invocation invocation{argc, argv, {}};
  add_commands(app, invocation);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {  // --help and --version
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    // A command that only groups others, without one of them: show what there is.
    const CLI::App* at = innermost(&app);
    const bool group = !at->get_subcommands([](const CLI::App*) { return true; }).empty();
    if (group && app.remaining(true).empty() && !json) {
      std::fputs(at->help(at == &app ? "" : full_name(at->get_parent())).c_str(), stdout);
    } else {
      print_error(usage_message(app, error), kWrongInput, json);
    }
    return kWrongInput;
  }
  return invocation.run();
}

}  // namespace

int run_app(int argc, char** argv) {
  const bool json = wants_json(argc, argv);
  try {
    const int code = parse_and_run(argc, argv, json);
    flush_stdout();
    return code;
  } catch (const Error& error) {
    print_error(error.what(), error.exit_code(), json);
    return error.exit_code();
  } catch (const std::exception& error) {
    print_error(error.what(), kFailed, json);
    return kFailed;
  }
}

}  // namespace poros
