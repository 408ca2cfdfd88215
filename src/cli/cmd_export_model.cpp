// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>

#include <CLI/CLI.hpp>
#include <unistd.h>

#include "base/error.hpp"
#include "cli/cell_program.hpp"
#include "cli/command.hpp"
#include "cli/output.hpp"
#include "model/merge.hpp"

namespace poros {
namespace {

struct ExportOptions {
  std::string model, adapter, out, dtype, base = "checkpoint", max_shard_size = "5GB", cache;
  int threads = 0;
  bool json = false;
};

/// "5GB", "200MB", "1000000": decimal units, as safetensors' writers take them.
std::uint64_t parse_size(const std::string& text) {
  const std::map<std::string, double> units = {{"", 1},     {"B", 1},    {"KB", 1e3},
                                               {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}};
  const char* begin = text.c_str();
  char* end = nullptr;
  const double number = std::strtod(begin, &end);
  const auto unit = units.find(end);
  const double bytes = unit == units.end() || end == begin ? 0 : number * unit->second;
  if (!(bytes >= 1) || bytes > 1e18) {
    fail(Fault::usage, "--max-shard-size \"{}\": expected a size such as 5GB or 500MB", text);
  }
  return static_cast<std::uint64_t>(bytes);
}

int export_model(const ExportOptions& options) {
  MergeOptions merge;
  merge.model_dir = model_from_argument(options.model);
  merge.adapter_dir = options.adapter;
  merge.out_dir = options.out;
  merge.base = options.base;
  merge.dtype = options.dtype;
  merge.max_shard_bytes = parse_size(options.max_shard_size);
  merge.cache_dir = options.cache;
  merge.threads = options.threads;
  const bool live = !options.json && ::isatty(STDERR_FILENO) != 0;
  const MergeReport report = merge_adapter(merge, [&](std::int64_t done, std::int64_t total) {
    if (live) {
      std::fprintf(stderr, "\rtensor %lld of %lld", static_cast<long long>(done),
                   static_cast<long long>(total));
    }
  });
  if (live) std::fputs("\r\033[K", stderr);
  if (options.json) {
    print_json({{"path", options.out},
                {"tensors", report.tensors},
                {"merged", report.merged},
                {"dequantised", report.dequantised},
                {"bytes", report.bytes},
                {"files", report.shards},
                {"dtype", report.dtype},
                {"adapter_sha256", report.adapter_sha256}});
    return kDone;
  }
  std::string text =
      fmt::format("{}: {} tensors, {} in {} file{}, {} of them with the adapter merged in\n",
                  options.out, report.tensors, bytes_text(static_cast<double>(report.bytes)),
                  report.shards, report.shards == 1 ? "" : "s", report.merged);
  if (report.dequantised > 0) {
    text += fmt::format("{} linears were NF4 and are {} now: dequantised first, then merged\n",
                        report.dequantised, report.dtype);
  }
  print_text(text);
  return kDone;
}

}  // namespace

void add_export_model(CLI::App& parent, Invocation& invocation) {
  const auto options = std::make_shared<ExportOptions>();
  CLI::App* command = parent.add_subcommand(
      "export", "Merge an adapter into its model: a checkpoint that transformers loads");
  command->add_option("--model", options->model, "Checkpoint folder, or a hub id in the cache")
      ->required();
  command->add_option("--adapter", options->adapter, "Adapter folder in PEFT's format")->required();
  command->add_option("-o,--output", options->out, "New folder for the checkpoint")->required();
  command
      ->add_option("--base", options->base,
                   "checkpoint: merge into the values of the files; nf4: into those that QLoRA "
                   "trained on")
      ->check(CLI::IsMember({"checkpoint", "nf4"}))
      ->capture_default_str();
  command->add_option("--dtype", options->dtype, "bf16, fp16 or fp32; default: as stored")
      ->check(CLI::IsMember({"bf16", "fp16", "fp32"}));
  command->add_option("--max-shard-size", options->max_shard_size, "Of one file: 5GB, 500MB, ...")
      ->capture_default_str();
  command->add_option("--cache", options->cache, "Cache of quantised bases");
  command->add_option("--threads", options->threads, "CPU threads; default: all")
      ->check(CLI::Range(1, 1024));
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(R"(Example:
  poros export --model Qwen/Qwen2.5-0.5B --adapter out/adapter -o merged
)");
  command->callback(
      [&invocation, options] { invocation.run = [options] { return export_model(*options); }; });
}

}  // namespace poros
