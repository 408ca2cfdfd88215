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
#include "cli/command.hpp"
#include "cli/output.hpp"
#include "model/open_base.hpp"
#include "spec/expand.hpp"
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

int prepare(const std::string& file, const std::filesystem::path& cache, bool json) {
  const BenchmarkSpec spec = read_spec(file);
  const std::vector<CellSpec> cells = expand(spec);
  for (const CellSpec& cell : cells) check_sources(cell);
  std::set<std::string> done;
  Json list = Json::array();
  TextTable table{{"model", "precision", "size", "seconds", "state", "weights"}, {}, "llrr"};
  for (const CellSpec& cell : cells) {
    const std::string id = cell.model.model_id + "@" + cell.model.revision + " " +
                           cell.model.weights + " " + cell.precision;
    if (!is_own_arm(cell.method) || !done.insert(id).second) continue;
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
  if (json) {
    print_json({{"spec_id", spec.spec_id}, {"bases", list}});
  } else {
    print_text(table.rows.empty() ? "no arm of this spec needs a prepared base\n" : table.text());
  }
  return kDone;
}

}  // namespace

void add_prepare(CLI::App& parent, Invocation& invocation) {
  struct Options {
    std::string spec;
    std::filesystem::path cache;
    bool json = false;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* command = parent.add_subcommand(
      "prepare", "Quantise the bases of a spec into the cache, ahead of a run");
  command->add_option("SPEC", options->spec, "The YAML file")->required();
  command->add_option("--cache", options->cache, "Another cache folder");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(R"(Example:
  poros prepare configs/bench/demo_cpu.yaml

Needs no GPU: do it on a login node before the GPUs are booked. A run does it by itself where it has
not been done.
)");
  command->callback([&invocation, options] {
    invocation.run = [options] { return prepare(options->spec, options->cache, options->json); };
  });
}

}  // namespace poros
