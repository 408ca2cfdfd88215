// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include <CLI/CLI.hpp>

#include "analysis/report.hpp"
#include "base/error.hpp"
#include "cli/command.hpp"
#include "cli/output.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

/// write_report into a folder that is made where it is missing, and not left behind on an error.
ReportPaths write_into(const fs::path& source, const fs::path& out, bool html, bool markdown) {
  std::vector<fs::path> made;  // innermost first
  for (fs::path folder = out; !folder.empty() && !fs::exists(folder);
       folder = folder.parent_path()) {
    made.push_back(folder);
  }
  fs::create_directories(out);
  try {
    return write_report(source, out, html, markdown);
  } catch (...) {
    std::error_code ignored;
    for (const fs::path& folder : made) fs::remove(folder, ignored);  // only when it is empty
    throw;
  }
}

}  // namespace

void add_report(CLI::App& parent, Invocation& invocation) {
  struct Options {
    std::string source, output;
    bool html = false, markdown = false, json = false;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* command = parent.add_subcommand("report", "Make report.html and report.md anew");
  command->add_option("DIR", options->source, "Campaign folder, or a campaign.h5 alone")
      ->required();
  command->add_flag("--html", options->html, "Only report.html");
  command->add_flag("--markdown,--md", options->markdown, "Only report.md");
  command->add_option("-o,--output", options->output,
                      "Folder for the reports; default: the campaign folder");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(R"(Examples:
  poros bench report bench_output/demo-cpu
  poros bench report bench_output/demo-cpu --html -o /tmp/reports

A report is a pure function of the records: the same records give the same bytes.
)");
  command->callback([&invocation, options] {
    invocation.run = [options] {
      const fs::path source = options->source;
      const bool both = options->html == options->markdown;
      fs::path out = options->output;
      if (out.empty()) out = fs::is_directory(source) ? source : source.parent_path();
      if (out.empty()) out = ".";
      const ReportPaths paths =
          write_into(source, out, both || options->html, both || options->markdown);
      Json written = Json::array();
      for (const fs::path& path : {paths.html, paths.markdown}) {
        if (!path.empty()) written.push_back(path.string());
      }
      if (options->json) {
        print_json({{"written", written}});
      } else {
        for (const Json& path : written) print_text(path.get<std::string>() + "\n");
      }
      return kDone;
    };
  });
}

}  // namespace poros
