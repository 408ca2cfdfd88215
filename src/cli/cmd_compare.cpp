// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "analysis/compare.hpp"
#include "analysis/format.hpp"
#include "base/error.hpp"
#include "base/files.hpp"
#include "cli/command.hpp"
#include "cli/output.hpp"

namespace poros {
namespace {

/// "5%" or "0.05" -> 0.05
double share_of(const std::string& text) {
  std::size_t end = 0;
  double value = -1;
  try {
    value = std::stod(text, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  const bool percent = end > 0 && text.substr(end) == "%";
  if (percent) value /= 100;
  if (end == 0 || (!percent && end != text.size()) || !(value >= 0 && value < 10)) {
    fail(Fault::usage, "--fail-on-regression: \"{}\" is no share; write 5% or 0.05", text);
  }
  return value;
}

std::string range_text(std::optional<double> s, std::optional<double> low,
                       std::optional<double> high, const std::string& outcome) {
  return s ? seconds(s) + " (" + seconds_range(low, high) + ")" : outcome;
}

std::string text_of(const Comparison& comparison) {
  TextTable table{{"Model", "Method", "A", "B", "B/A", "95 % interval", "Memory B/A", "Verdict"},
                  {},
                  "llrrrrrl"};
  for (const ComparedCell& c : comparison.cells) {
    table.rows.push_back({c.model + " " + c.precision, c.method + " " + c.variant,
                          range_text(c.s_a, c.low_a, c.high_a, c.outcome_a),
                          range_text(c.s_b, c.low_b, c.high_b, c.outcome_b), factor(c.time_ratio),
                          c.time_low ? factor(c.time_low) + " to " + factor(c.time_high) : kMissing,
                          factor(c.memory_ratio),
                          std::string(word(c.verdict)) + (c.regression ? ", regression" : "")});
  }
  std::string text = fmt::format("A: {}\nB: {}\n{} expected, {} compared, {} regressions\n\n{}",
                                 comparison.name_a, comparison.name_b, comparison.cells.size(),
                                 comparison.compared, comparison.regressions, table.text());
  for (const std::string& problem : comparison.problems) text += "problem: " + problem + "\n";
  return text;
}

struct Options {
  std::vector<std::string> sources;
  std::string regression, junit;
  bool hardware = false, protocol = false, json = false, markdown = false;
};

int compare(const Options& options) {
  CompareOptions how{options.hardware, options.protocol, {}};
  if (!options.regression.empty()) how.fail_share = share_of(options.regression);
  if (options.sources.size() < 2) fail(Fault::usage, "compare needs two campaigns or more");
  std::vector<Comparison> comparisons;
  const ReportModel baseline = make_report_model(load_campaign(options.sources.front()));
  std::size_t regressions = 0;
  for (std::size_t i = 1; i < options.sources.size(); ++i) {
    comparisons.push_back(compare_campaigns(baseline, options.sources.front(),
                                            make_report_model(load_campaign(options.sources[i])),
                                            options.sources[i], how));
    regressions += comparisons.back().regressions;
  }
  if (!options.junit.empty()) write_file_durably(options.junit, compare_junit(comparisons));
  if (options.json) {
    Json all = Json::array();
    for (const Comparison& comparison : comparisons) all.push_back(to_json(comparison));
    print_json({{"comparisons", all}, {"regressions", regressions}});
  } else {
    for (const Comparison& comparison : comparisons) {
      print_text(options.markdown ? compare_markdown(comparison) : text_of(comparison));
    }
  }
  return regressions > 0 ? kFailed : kDone;
}

}  // namespace

void add_compare(CLI::App& parent, Invocation& invocation) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = parent.add_subcommand("compare", "Campaigns beside each other, cell by cell");
  command->add_option("CAMPAIGN", options->sources, "The baseline, then one or more others")
      ->required()
      ->expected(-1);
  command->add_option("--fail-on-regression", options->regression,
                      "Exit with 1 where time or memory grew by more than this, e.g. 5%, or a cell "
                      "was lost");
  command->add_option("--junit", options->junit, "Write a JUnit file too");
  command->add_flag("--different-hardware", options->hardware, "Compare across hardware");
  command->add_flag("--different-protocol", options->protocol, "Compare across protocols");
  command->add_flag("--markdown,--md", options->markdown, "Print Markdown");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(R"(Examples:
  poros bench compare last_week today --fail-on-regression 5%
  poros bench compare a/campaign.h5 b c --markdown
)");
  command->callback(
      [&invocation, options] { invocation.run = [options] { return compare(*options); }; });
}

}  // namespace poros
