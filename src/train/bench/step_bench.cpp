// SPDX-License-Identifier: Apache-2.0
// poros-step-bench: optimizer steps of models' real shapes with random weights, for one residency
// after the other. Prints time, rates, memory and stalls, and whether the arms agree bit by bit.
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/files.hpp"
#include "bench_table.hpp"
#include "model/open_base.hpp"

namespace poros::bench {
namespace {

namespace fs = std::filesystem;

/// A folder that is deleted with what it holds.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "poros-step-bench-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) fail_errno(Fault::io, name);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// The model's config.json with as many layers as asked for, in a folder of its own.
fs::path write_config(const Options& options, const std::string& model, const fs::path& folder) {
  fs::path path = model;
  if (!fs::exists(path)) path = fs::path(options.configs) / ("qwen2.5-" + model);
  if (fs::is_directory(path)) path /= "config.json";
  Json config = parse_json(read_file(path), path.string());
  if (options.layers > 0) config["num_hidden_layers"] = options.layers;
  fs::create_directories(folder);
  write_file_durably(folder / "config.json", dump_json(config) + "\n");
  return folder;
}

/// Lines for people go to stderr where stdout is for JSON.
void say(const Options& options, const std::string& text) {
  std::FILE* to = options.json ? stderr : stdout;
  std::fputs(text.c_str(), to);
  std::fflush(to);
}

/// All arms of one model. @returns false when one failed or differs in bits
bool run_model(const std::string& model, const Options& options, const Stream& stream,
               Ceilings ceilings, std::vector<Row>& rows) {
  const TemporaryFolder folder;
  BaseRequest request;
  request.model = write_config(options, model, folder.path() / "model");
  request.precision = options.precision;
  request.synthetic = true;
  request.seed = 42;
  request.cache = options.cache.empty() ? folder.path() / "cache" : options.cache;
  const double begin = monotonic_s();
  auto base = open_base(request);
  say(options, fmt::format("{} with {} layers, {}, weights {}: base made or opened in {:.1f} s\n",
                           model, base->architecture().layer_count(), options.precision,
                           base->weights(), monotonic_s() - begin));
  if (options.base_only) return true;
  if (!options.skip_ceilings) {
    ceilings.matrix_tflops =
        measure_products(stream, base->architecture(), options.tokens(), options.ceiling_s);
    say(options,
        fmt::format("its layers' products: {:.0f} TFLOP/s; device copy {:.0f} GB/s, host "
                    "link {:.1f} GB/s\n",
                    ceilings.matrix_tflops, ceilings.device_gb_per_s, ceilings.host_link_gb_per_s));
  }
  bool good = true;
  const std::size_t first = rows.size();
  for (const std::string& arm : options.arms) {
    try {
      base.reset();
      const double open = monotonic_s();
      base = open_base(request);  // now from the cache: what a second start takes
      const double open_s = monotonic_s() - open;
      Row row;
      row.result = run_arm(arm, *base, options, stream);
      row.result.model = model;
      row.result.open_s = open_s;
      row.ceilings = ceilings;
      row.operations = operations(base->architecture(), options);
      row.same_bits = rows.size() == first || rows[first].result.bits == row.result.bits;
      for (std::size_t at = first; at < rows.size(); ++at) {
        if (rows[at].result.arm == "resident") row.resident_s = rows[at].result.seconds;
      }
      if (arm == "resident") row.resident_s = row.result.seconds;
      say(options, line_of(row, options));
      if (options.profile) say(options, text_of(row.result.trace, options.steps));
      if (!row.same_bits) {
        say(options, fmt::format("{} and {} differ in bits\n", rows[first].result.arm, arm));
        good = false;
      }
      rows.push_back(std::move(row));
    } catch (const std::exception& error) {
      say(options, fmt::format("{} {:9} failed: {}\n", model, arm, error.what()));
      good = false;
    }
  }
  return good;
}

int run(const Options& options) {
  register_cuda_device();
  (void)cuda_device_model();  // says what is missing
  const Stream stream{DeviceKind::cuda, cuda_device().open(), 1};
  const CudaFacts facts = cuda_device().facts();
  Ceilings copies;
  if (!options.skip_ceilings && !options.base_only) measure_copies(stream, copies);
  std::vector<Row> rows;
  bool good = true;
  for (const std::string& model : options.models) {
    good = run_model(model, options, stream, copies, rows) && good;
  }
  if (options.json) fmt::print("{}\n", dump_json(json_of(rows, facts, options)));
  if (options.markdown) say(options, "\n" + markdown_of(rows, facts, options));
  return good ? kDone : kFailed;
}

}  // namespace
}  // namespace poros::bench

int main(int argc, char** argv) {
  poros::bench::Options options;
  CLI::App app("Time and memory of a training step on this GPU, with random weights.");
  app.add_option("--shapes,--shape", options.models,
                 "Names below --configs (0.5b, 7b, 32b, 72b), model folders or config.json files")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--configs", options.configs, "Folder of the named shapes")->capture_default_str();
  app.add_option("--residency", options.arms, "resident, streamed, partial; several to compare")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--precision", options.precision)->capture_default_str();
  app.add_option("--layers", options.layers, "Decoder layers; 0: the model's");
  app.add_option("--steps", options.steps, "Timed steps")->capture_default_str();
  app.add_option("--warmup", options.warmup, "Steps before them")->capture_default_str();
  app.add_option("--seq-len", options.seq_len)->capture_default_str();
  app.add_option("--batch", options.batch)->capture_default_str();
  app.add_option("--accumulation", options.accumulation)->capture_default_str();
  app.add_option("--accumulate", options.accumulate, "block_major or micro_major")
      ->capture_default_str();
  app.add_option("--rank", options.rank)->capture_default_str();
  app.add_option("--dropout", options.dropout)->capture_default_str();
  app.add_option("--block-size", options.block_size)->capture_default_str();
  app.add_option("--slots", options.slots)->capture_default_str();
  app.add_option("--budget-mb", options.budget_mb, "partial: limit of the arena [MiB]");
  app.add_option("--layer-inputs", options.layer_inputs, "auto, host or device")
      ->capture_default_str();
  app.add_flag("--no-prefetch", options.no_prefetch, "Copy a block when it is asked for");
  app.add_option("--cache", options.cache,
                 "Keep the quantised bases here; else each is deleted after its model");
  app.add_option("--ceiling-s", options.ceiling_s, "Seconds that the products of a layer are run")
      ->capture_default_str();
  app.add_flag("--skip-ceilings", options.skip_ceilings, "Don't measure what the GPU can do");
  app.add_flag("--base-only", options.base_only, "Build the base in --cache and end");
  app.add_flag("--phases", options.phases, "Time by phase of a step");
  app.add_flag("--profile", options.profile, "As many steps more, with time by kernel (CUPTI)");
  app.add_flag("--json", options.json, "Print one JSON object in the end");
  app.add_flag("--markdown", options.markdown, "Print a table in the end");
  CLI11_PARSE(app, argc, argv);
  try {
    return poros::bench::run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "poros-step-bench: {}\n", error.what());
    return poros::kFailed;
  }
}
