// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <memory>

#include <CLI/CLI.hpp>
#include <unistd.h>

#include "base/error.hpp"
#include "campaign/arms.hpp"
#include "cli/command.hpp"
#include "cli/output.hpp"
#include "model/hub.hpp"
#include "spec/spec_reader.hpp"

namespace poros {
namespace {

/// Models and datasets of a spec that come from the hub.
Json wanted(const BenchmarkSpec& spec) {
  Json models = Json::array(), datasets = Json::array();
  std::map<std::pair<std::string, std::string>, bool> weights;  // false: the shape alone is used
  for (const ModelSpec& model : spec.models) {
    if (!model.path.empty()) continue;
    bool& needed = weights[{model.model_id, model.revision}];
    needed = needed || model.weights != "synthetic";
  }
  for (const auto& [id, needed] : weights) {
    models.push_back({{"id", id.first}, {"revision", id.second}, {"weights", needed}});
  }
  const DatasetSpec& dataset = spec.training.dataset;
  if (dataset.path.empty() && dataset.source != "synthetic") datasets.push_back(dataset.source);
  return {{"models", models}, {"datasets", datasets}};
}

/// Becomes the Python step, which talks to the terminal itself; comes back only with an error.
int become_fetch(Json request, bool dry_run, bool json) {
  const InstallPaths paths = find_install_paths({});
  if (paths.peers_dir.empty()) {
    fail(Fault::environment,
         "the fetching step (src/peers) was not found beside this program; set POROS_PEERS_DIR to "
         "the folder that holds poros_peers/");
  }
  request["dry_run"] = dry_run;
  request["json"] = json;
  request["cache"] = hub_cache_folder().string();
  ::setenv("PYTHONPATH", paths.peers_dir.c_str(), 1);
  ::setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
  const std::string text = dump_json(request);
  flush_stdout();
  ::execlp(paths.python.c_str(), paths.python.c_str(), "-m", "poros_peers.fetch", text.c_str(),
           static_cast<char*>(nullptr));
  fail_errno(Fault::environment, paths.python + " can't be started");
}

int fetch(const std::string& file, bool dry_run, bool json) {
  const Json request = wanted(read_spec(file));
  if (request["models"].empty() && request["datasets"].empty()) {
    if (json) {
      print_json({{"models", Json::array()}, {"datasets", Json::array()}});
    } else {
      print_text("nothing to fetch: every model and dataset of this spec is a path\n");
    }
    return kDone;
  }
  return become_fetch(request, dry_run, json);
}

}  // namespace

void add_fetch(CLI::App& parent, Invocation& invocation) {
  struct Options {
    std::string spec;
    bool dry_run = false, json = false;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* command =
      parent.add_subcommand("fetch", "Download the hub models and datasets of a spec");
  command->add_option("SPEC", options->spec, "The YAML file")->required();
  command->add_flag("--dry-run", options->dry_run, "Show the sizes and download nothing");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(R"(Examples:
  poros fetch my.yaml --dry-run     what there is to download, and how much
  poros fetch my.yaml               download it, or what is missing of it

The one command that uses the network: run it where there is one. Files go into the hub's own cache
(HF_HOME); models at the spec's `revision`, whose commit is shown: write that commit into the spec
to pin it. Of a model with `weights: synthetic` only config and tokenizer are taken. An access token
is taken from HF_TOKEN or `hf auth login`. Afterwards: poros prepare SPEC.
)");
  command->callback([&invocation, options] {
    invocation.run = [options] { return fetch(options->spec, options->dry_run, options->json); };
  });
}

}  // namespace poros
