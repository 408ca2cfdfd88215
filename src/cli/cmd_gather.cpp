// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include <CLI/CLI.hpp>

#include "base/error.hpp"
#include "campaign/gather.hpp"
#include "cli/command.hpp"
#include "cli/output.hpp"

namespace poros {
namespace {

struct GatherCommand {
  std::vector<std::string> dirs;
  std::string output_dir;
  GatherOptions gather;
  bool json = false;
};

int run_gather(const GatherCommand& command) {
  const std::vector<std::filesystem::path> dirs(command.dirs.begin(), command.dirs.end());
  const bool joins = !command.output_dir.empty();
  if (dirs.size() > 1 && !joins) {
    fail(Fault::usage, "several campaigns are joined into a folder of their own: give -o OUT");
  }
  const std::filesystem::path dir = joins ? command.output_dir : command.dirs.front();
  const Gathered gathered =
      joins ? gather_campaigns(dirs, dir, command.gather) : gather_shards(dir, command.gather);
  const Campaign& campaign = gathered.campaign;
  const std::string store = (dir / kStoreFile).string();
  std::size_t passes = 0;
  for (const CampaignCell& cell : campaign.cells) passes += cell.artifact.passes.size();
  if (command.json) {
    print_json({{"store", store},
                {"cells", campaign.cells.size()},
                {"passes", passes},
                {"receipts", campaign.receipts.size()},
                {"appended", gathered.appended},
                {"pending", campaign.pending},
                {"problems", campaign.problems}});
  } else {
    print_text(fmt::format("{}: {} cells, {} passes, {} receipts", store, campaign.cells.size(),
                           passes, campaign.receipts.size()));
    if (gathered.appended > 0) print_text(fmt::format(" ({} new)", gathered.appended));
    print_text(fmt::format("; {} cells have no record yet\n", campaign.pending.size()));
    for (const std::string& problem : campaign.problems) print_text(problem + "\n");
  }
  return campaign.problems.empty() ? kDone : kFailed;
}

}  // namespace

void add_gather(CLI::App& parent, Invocation& invocation) {
  const auto options = std::make_shared<GatherCommand>();
  CLI::App* command = parent.add_subcommand(
      "gather", "Join a campaign's shards, or several campaigns, and make campaign.h5 anew");
  command->add_option("DIR", options->dirs, "Campaign folder, or several")->required();
  command->add_option("-o,--output-dir", options->output_dir,
                      "Folder for the join of several campaigns of one spec");
  command->add_flag("--allow-mixed", options->gather.allow_mixed,
                    "Join although a cell was measured by two builds or on two models of GPU");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(R"(Examples:
  poros bench gather bench_output/demo-cpu
  poros bench gather from-3090 from-b300 -o joined

Receipts (results.jsonl and artifacts/) are the truth; campaign.h5 is made from them and can be
deleted. Receipts that drivers with --shard-name have written are appended to the campaign's own
results.jsonl; gathering again appends what is new. Exit code 1 when a record that a receipt names
is missing or altered.
)");
  command->callback(
      [&invocation, options] { invocation.run = [options] { return run_gather(*options); }; });
}

}  // namespace poros
