// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "analysis/verify.hpp"
#include "base/error.hpp"
#include "base/files.hpp"
#include "cli/command.hpp"
#include "cli/output.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

std::string text_of(const Verification& v) {
  std::string text = fmt::format(
      "{}: {}: {} receipts, {} artifacts, {} cells, {} passes, {} not run{}\n", v.name,
      v.problems.empty() ? "verified" : "NOT verified", v.receipts, v.artifacts, v.cells, v.passes,
      v.pending, v.original_format ? " (Python original: no checksums to check)" : "");
  for (const std::string& problem : v.problems) text += "  " + problem + "\n";
  return text;
}

int verify(const fs::path& dir, bool index, bool json) {
  std::vector<Verification> verified;
  const std::vector<fs::path> below =
      fs::is_directory(dir) ? campaigns_below(dir) : std::vector<fs::path>{};
  if (index || !below.empty()) {
    if (!fs::is_directory(dir)) fail(Fault::input, "{}: not a folder", dir.string());
    for (const fs::path& campaign : below) verified.push_back(verify_campaign(campaign));
  } else {
    verified.push_back(verify_campaign(dir));
  }
  bool good = true;
  Json all = Json::array();
  for (const Verification& v : verified) {
    good = good && v.problems.empty();
    all.push_back(to_json(v));
    if (!json) print_text(text_of(v));
  }
  if (index) write_file_durably(dir / "INDEX.md", validation_index(verified));
  if (json) print_json({{"verified", good}, {"campaigns", all}});
  return good ? kDone : kFailed;
}

}  // namespace

void add_verify(CLI::App& parent, Invocation& invocation) {
  struct Options {
    std::string dir;
    bool index = false, json = false;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* command =
      parent.add_subcommand("verify", "Trace what a campaign shows to its raw records");
  command->add_option("DIR", options->dir, "Campaign folder, or a folder of several")->required();
  command->add_flag("--index", options->index, "Write DIR/INDEX.md: the campaigns that verify");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(R"(Examples:
  poros bench verify bench_output/demo-cpu
  poros bench verify campaigns --index

Exit code 1: something is missing or was altered; what it is stands in the output.
)");
  command->callback([&invocation, options] {
    invocation.run = [options] { return verify(options->dir, options->index, options->json); };
  });
}

}  // namespace poros
