// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include <CLI/CLI.hpp>

#include "base/error.hpp"
#include "cli/command.hpp"
#include "cli/output.hpp"
#include "receipts/hdf5_store.hpp"

namespace poros {

void add_gather(CLI::App& parent, Invocation& invocation) {
  struct Options {
    std::string dir;
    bool json = false;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* command =
      parent.add_subcommand("gather", "Make campaign.h5 anew from a campaign's receipts");
  command->add_option("DIR", options->dir, "Campaign folder")->required();
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(R"(Example:
  poros bench gather bench_output/demo-cpu

Receipts (results.jsonl and artifacts/) are the truth; campaign.h5 is made from them and can be
deleted. Exit code 1 when a record that a receipt names is missing or altered.
)");
  command->callback([&invocation, options] {
    invocation.run = [options] {
      const std::filesystem::path dir = options->dir;
      const Campaign campaign = gather(dir);
      const std::string store = (dir / kStoreFile).string();
      std::size_t passes = 0;
      for (const CampaignCell& cell : campaign.cells) passes += cell.artifact.passes.size();
      if (options->json) {
        print_json({{"store", store},
                    {"cells", campaign.cells.size()},
                    {"passes", passes},
                    {"receipts", campaign.receipts.size()},
                    {"pending", campaign.pending},
                    {"problems", campaign.problems}});
      } else {
        print_text(fmt::format(
            "{}: {} cells, {} passes, {} receipts; {} cells have no record yet\n", store,
            campaign.cells.size(), passes, campaign.receipts.size(), campaign.pending.size()));
        for (const std::string& problem : campaign.problems) print_text(problem + "\n");
      }
      return campaign.problems.empty() ? kDone : kFailed;
    };
  });
}

}  // namespace poros
