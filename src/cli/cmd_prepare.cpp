// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <memory>
#include <set>

#include <CLI/CLI.hpp>
#include <unistd.h>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "campaign/arms.hpp"
#include "campaign/inputs.hpp"
#include "campaign/open_campaign.hpp"
#include "campaign/peer_checkpoint.hpp"
#include "campaign/plan.hpp"
#include "cli/command.hpp"
#include "cli/output.hpp"
#include "model/open_base.hpp"
#include "receipts/lease.hpp"
#include "spec/spec_reader.hpp"

namespace poros {
namespace {

struct Prepared {
  std::string model, precision, weights;
  double seconds = 0;
  bool built = false;
  double bytes = 0;
};

/// Opens a cell's base, which builds its cache entry where that is missing.
Prepared prepare_base(const CellSpec& cell, const std::filesystem::path& cache, bool json) {
  BaseRequest request;
  request.model = model_folder(cell.model);
  request.precision = cell.precision;
  request.synthetic = cell.model.weights == "synthetic";
  request.seed = static_cast<std::uint64_t>(cell.training.seed);
  request.cache = cache;
  Prepared prepared{cell.model.display_name, cell.precision, {}, 0, false, 0};
  const bool live = !json && ::isatty(STDERR_FILENO) != 0;
  const double start_s = monotonic_s();
  const auto base = open_base(request, [&](std::int64_t done, std::int64_t total) {
    prepared.built = true;
    if (live) {
      std::fprintf(stderr, "\r%s %s: part %lld of %lld", prepared.model.c_str(),
                   prepared.precision.c_str(), static_cast<long long>(done),
                   static_cast<long long>(total));
    }
  });
  if (live && prepared.built) std::fputs("\r\033[K", stderr);
  prepared.seconds = monotonic_s() - start_s;
  prepared.weights = base->weights();
  for (const auto& [storage, bytes] : base->bytes_by_storage()) prepared.bytes += bytes;
  return prepared;
}

/// Fails where a running campaign writes the folder, or it belongs to another spec.
void check_campaign(const CampaignFolder& folder, const CampaignPlan& plan) {
  check_folder(folder, plan, false);
  const LeaseView lease = view_lease(folder.journal());
  if (lease.state != LeaseState::live && lease.state != LeaseState::stale) return;
  fail(Fault::input, "{}: a run holds it ({}) and prepares what it needs by itself",
       folder.dir().string(), lease.holder ? describe(*lease.holder) : "just starting");
}

/// Bases into the cache, one a model and precision.
Json prepare_bases(const CampaignPlan& plan, const std::filesystem::path& cache, bool json,
                   TextTable& table) {
  std::set<std::string> done;
  Json list = Json::array();
  for (const PlannedCell& planned : plan.cells) {
    const CellSpec& cell = planned.spec;
    const std::string id = cell.model.model_id + "@" + cell.model.revision + " " +
                           cell.model.weights + " " + cell.precision;
    if (!is_own_arm(cell.method)) {
      // Where the weights are synthetic the libraries read an export of the same base.
      if (cell.model.weights == "synthetic") {
        static_cast<void>(peer_checkpoint(cell, model_folder(cell.model),
                                          cache.empty() ? default_cache_folder() : cache));
      }
      continue;
    }
    if (!done.insert(id).second) continue;
    const Prepared base = prepare_base(cell, cache, json);
    list.push_back({{"model", base.model},
                    {"precision", base.precision},
                    {"weights", base.weights},
                    {"bytes", base.bytes},
                    {"built", base.built},
                    {"seconds", base.seconds}});
    table.rows.push_back({base.model, base.precision, bytes_text(base.bytes),
                          fmt::format("{:.1f}", base.seconds), base.built ? "built" : "was there",
                          base.weights.substr(0, 24)});
  }
  return list;
}

/// Token file and first adapter of each comparison group, where a run of the same spec finds them.
Json prepare_group_inputs(const CampaignPlan& plan, const CampaignFolder& folder, bool json,
                          TextTable& table) {
  const InstallPaths paths = find_install_paths({});
  const Redactor redactor(current_environment());
  const InputContext context{folder,
                             paths,
                             redactor,
                             [json](const std::string& line) {
                               if (!json) std::fprintf(stderr, "%s\n", line.c_str());
                             },
                             {}};
  Json list = Json::array();
  std::set<std::string> told;  // precisions of a model share their files
  for (const ComparisonGroup& group : plan.groups) {
    const PlannedCell& first = plan.cells[group.cells.front()];
    const GroupInputs inputs = prepare_inputs(context, first.spec, false);
    if (!told.insert(inputs.token_sha256 + inputs.adapter_sha256).second) continue;
    list.push_back({{"model", first.model},
                    {"tokens", inputs.tokens_path.string()},
                    {"token_sha256", inputs.token_sha256},
                    {"adapter", inputs.adapter_dir.string()},
                    {"adapter_sha256", inputs.adapter_sha256}});
    table.rows.push_back({first.model, inputs.tokens_path.filename().string().substr(0, 16),
                          inputs.adapter_dir.filename().string().substr(0, 16)});
  }
  return list;
}

int prepare(const std::string& file, const std::string& output_dir,
            const std::filesystem::path& cache, bool json) {
  const BenchmarkSpec spec = read_spec(file);
  const CampaignFolder folder(output_dir.empty() ? spec.reporting.output_dir : output_dir);
  const CampaignPlan plan = make_plan(spec);
  for (const PlannedCell& cell : plan.cells) check_sources(cell.spec);
  check_campaign(folder, plan);
  TextTable bases{{"model", "precision", "size", "seconds", "state", "weights"}, {}, "llrr"};
  TextTable files{{"model", "tokens", "first adapter"}, {}, "lll"};
  const Json base_list = prepare_bases(plan, cache, json, bases);
  const Json input_list = prepare_group_inputs(plan, folder, json, files);
  if (json) {
    print_json({{"spec_id", spec.spec_id},
                {"campaign", folder.dir().string()},
                {"bases", base_list},
                {"inputs", input_list}});
    return kDone;
  }
  print_text(bases.rows.empty() ? "no arm of this spec needs a prepared base\n" : bases.text());
  print_text("\n" + files.text() +
             fmt::format("in {}: a run into it makes nothing anew\n", folder.inputs().string()));
  return kDone;
}

}  // namespace

void add_prepare(CLI::App& parent, Invocation& invocation) {
  struct Options {
    std::string spec, output_dir;
    std::filesystem::path cache;
    bool json = false;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* command = parent.add_subcommand(
      "prepare", "Make what a run of a spec reads, ahead of it: bases, tokens, first adapters");
  command->add_option("SPEC", options->spec, "The YAML file")->required();
  command->add_option("-o,--output-dir", options->output_dir,
                      "Campaign folder of the run, instead of reporting.output_dir");
  command->add_option("--cache", options->cache, "Another cache folder for the bases");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(R"(Example:
  poros prepare configs/bench/demo_cpu.yaml

Needs neither a GPU nor the network: do it on a login node before the GPUs are booked (models and
datasets of the hub come before it, with `poros fetch SPEC`). Bases go into the cache; token files
and first adapters into the campaign folder, where `poros bench run` with the same SPEC and
--output-dir finds them. A run does by itself what has not been done.
)");
  command->callback([&invocation, options] {
    invocation.run = [options] {
      return prepare(options->spec, options->output_dir, options->cache, options->json);
    };
  });
}

}  // namespace poros
