// SPDX-License-Identifier: Apache-2.0
// poros-step-bench: optimizer steps of a model's real shapes with random weights, for one residency
// after the other. Prints time, rates, memory and stalls, and whether the arms agree bit by bit.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/files.hpp"
#include "base/json.hpp"
#include "base/sha256.hpp"
#include "ceilings.hpp"
#include "model/open_base.hpp"
#include "model/token_file.hpp"
#include "plan/layer_roles.hpp"
#include "train/device.hpp"
#include "train/optimizer.hpp"

namespace poros::bench {
namespace {

namespace fs = std::filesystem;
constexpr double kMiB = 1048576.0;

struct Options {
  std::string model = "0.5b", configs = "configs/models", precision = "nf4";
  std::vector<std::string> arms = {"resident", "streamed"};
  std::int64_t layers = 0, steps = 10, warmup = 3;
  std::int64_t seq_len = 512, batch = 1, accumulation = 8, rank = 16;
  std::int64_t block_size = 1, slots = 3, budget_mb = 0;
  std::string layer_inputs = "auto", accumulate = "block_major";
  bool no_prefetch = false, skip_ceilings = false, base_only = false;
  double dropout = 0, ceiling_s = 2;
  fs::path cache;
};

/// The model's config.json with as many layers as asked for, in a folder of its own.
fs::path write_config(const Options& options, const fs::path& folder) {
  fs::path path = options.model;
  if (!fs::exists(path)) path = fs::path(options.configs) / ("qwen2.5-" + options.model);
  if (fs::is_directory(path)) path /= "config.json";
  Json config = parse_json(read_file(path), path.string());
  if (options.layers > 0) config["num_hidden_layers"] = options.layers;
  fs::create_directories(folder);
  write_file_durably(folder / "config.json", dump_json(config) + "\n");
  return folder;
}

/// Matrix-unit work of one step [floating-point operations]: products with the base forward, again
/// (but for down), and for dX; the head both ways; LoRA's small ones.
double operations(const Architecture& architecture, const Options& options) {
  double linears = 0, again = 0, lora = 0;
  for (const LayerShape& layer : architecture.layers) {
    const std::vector<LinearRole> roles = linear_roles(layer);
    for (std::size_t i = 0; i < roles.size(); ++i) {
      const LinearShape& linear = layer.linears[i];
      const auto size = static_cast<double>(linear.in * linear.out);
      linears += size;
      if (roles[i].site != Site::mlp_down) again += size;
      lora += 4.0 * static_cast<double>(options.rank * (linear.in + linear.out));
    }
  }
  const double head = static_cast<double>(architecture.hidden * architecture.vocab);
  const auto tokens = static_cast<double>(options.batch * options.accumulation * options.seq_len);
  return 2.0 * tokens * (2.0 * linears + again + 2.0 * head + lora);
}

struct Result {
  std::string arm, bits;
  double seconds = 0, least = 0, most = 0, queue_s = 0;
  double loss = 0, norm = 0;
  double planned_mb = 0, peak_mb = 0, reserved_mb = 0, load_s = 0, pinned_mb = 0;
  double stall_s = 0, copied_gb = 0;    // a step
  std::int64_t device_allocations = 0;  // during the timed steps
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
}

ResidencySettings settings_of(const std::string& arm, const Options& options) {
  ResidencySettings settings;
  settings.kind = arm == "resident"  ? ResidencyKind::resident
                  : arm == "partial" ? ResidencyKind::partial
                                     : ResidencyKind::streamed;
  if (arm != "resident" && arm != "streamed" && arm != "partial") {
    fail(Fault::input, "residency \"{}\" is not resident, streamed or partial", arm);
  }
  settings.block_size = options.block_size;
  settings.slots = options.slots;
  settings.prefetch = !options.no_prefetch;
  settings.budget_mb = options.budget_mb;
  settings.inputs_on_device =
      options.layer_inputs == "auto" ? arm == "resident" : options.layer_inputs == "device";
  return settings;
}

Adapter random_adapter(const Architecture& architecture, const LoraSpec& lora) {
  Adapter adapter = initial_adapter(architecture, lora, "bench", 11);
  std::mt19937 generator(17);
  std::normal_distribution<float> normal(0.0F, 0.01F);
  for (LoraWeights& weights : adapter.weights) {
    for (float& value : weights.b) value = normal(generator);
  }
  return adapter;
}

Result run_arm(const std::string& arm, const BaseStore& base, const Options& options,
               const Stream& stream) {
  TrainingSpec training;
  training.seq_len = options.seq_len;
  training.batch_size = options.batch;
  training.gradient_accumulation_steps = options.accumulation;
  LoraSpec lora;
  lora.rank = options.rank;
  lora.alpha = 2.0 * static_cast<double>(options.rank);
  lora.dropout = options.dropout;
  PorosSpec poros;
  poros.accumulation = options.accumulate;
  const Architecture& architecture = base.architecture();
  const NumericalPlan plan =
      make_numerical_plan(architecture, training, lora, poros, cuda_device_model());
  const Adapter adapter = random_adapter(architecture, lora);
  const MemoryPlan memory = make_memory_plan(base, plan, adapter.places, settings_of(arm, options));
  Result result;
  result.arm = arm;
  const double begin_load = monotonic_s();
  Executor executor(base, plan, memory, adapter, stream);
  AdamW optimizer(flat_parameters(executor), {0.01, 1.0}, stream);
  result.load_s = monotonic_s() - begin_load;
  result.planned_mb = static_cast<double>(memory.arena_bytes + memory.framework_bytes) / kMiB;
  result.pinned_mb = static_cast<double>(memory.pinned_bytes) / kMiB;
  cuda_device().reset_peaks();

  const auto tokens =
      static_cast<std::size_t>(options.batch * options.accumulation * options.seq_len);
  std::vector<std::uint32_t> ids(tokens);
  std::vector<std::uint8_t> flags(tokens, TokenFile::kSupervised);
  for (std::size_t at = 0; at < tokens; at += static_cast<std::size_t>(options.seq_len)) {
    flags[at] = TokenFile::kDocumentStart;
  }
  std::vector<double> seconds, queueing;
  ExecutorCounters before;
  std::int64_t allocations = 0;
  for (std::int64_t step = 0; step < options.warmup + options.steps; ++step) {
    std::mt19937_64 generator(static_cast<std::uint64_t>(step) + 1);
    for (std::uint32_t& id : ids) {
      id = static_cast<std::uint32_t>(generator() % static_cast<std::uint64_t>(architecture.vocab));
    }
    if (step == options.warmup) {
      before = executor.counters();
      allocations = cuda_device().memory().device_allocations;
    }
    const double begin = monotonic_s();
    (void)executor.run_step({ids, flags}, step);
    const double queued = monotonic_s();
    result.loss = static_cast<double>(executor.loss());
    result.norm = static_cast<double>(optimizer.measure_norm().norm);
    optimizer.update(1e-4);
    synchronise(stream);
    if (step < options.warmup) continue;
    seconds.push_back(monotonic_s() - begin);
    queueing.push_back(queued - begin);
  }
  if (!std::isfinite(result.loss) || !std::isfinite(result.norm)) {
    fail(Fault::run, "{}: loss {} or gradient norm {} is not finite", arm, result.loss,
         result.norm);
  }
  result.seconds = median(seconds);
  result.least = *std::min_element(seconds.begin(), seconds.end());
  result.most = *std::max_element(seconds.begin(), seconds.end());
  result.queue_s = median(queueing);
  const CudaMemory held = cuda_device().memory();
  result.peak_mb = static_cast<double>(held.allocated_peak) / kMiB;
  result.reserved_mb = static_cast<double>(held.reserved_peak) / kMiB;
  result.device_allocations = held.device_allocations - allocations;
  const ExecutorCounters after = executor.counters();
  const auto steps = static_cast<double>(options.steps);
  result.stall_s = (after.copy_stall_s - before.copy_stall_s) / steps;
  result.copied_gb = static_cast<double>(after.bytes_copied - before.bytes_copied) * 1e-9 / steps;

  std::vector<float> memory_of_host;
  const FlatParameters host = host_parameters(executor, memory_of_host);
  const auto bytes = static_cast<std::size_t>(executor.flat_elements()) * sizeof(float);
  Sha256 hash;
  hash.update(&result.loss, sizeof result.loss);
  hash.update(&result.norm, sizeof result.norm);
  for (const float* values : {host.gradient, host.exp_avg, host.exp_avg_sq, host.master}) {
    hash.update(values, bytes);
  }
  result.bits = hash.hex().substr(0, 16);
  return result;
}

void print(const Result& r, double work, double tokens, const Ceilings& ceilings) {
  const double tflops = work * 1e-12 / r.seconds;
  const std::string percent = ceilings.matrix_tflops > 0
                                  ? fmt::format("{:.1f}", 100 * tflops / ceilings.matrix_tflops)
                                  : "--";
  fmt::print(
      "{:9} {:.4f} s/step ({:.4f}..{:.4f}, queued in {:.4f})  {:.0f} tokens/s  {:.0f} TFLOP/s = "
      "{} % of the ceiling\n"
      "          planned {:.0f} MiB, allocator peak {:.0f} MiB, reserved {:.0f} MiB, pinned {:.0f} "
      "MiB, load {:.1f} s\n"
      "          copied {:.2f} GB a step, stalled {:.4f} s; {} device allocations in the timed "
      "steps; loss {:.5f}, norm {:.5f}, bits {}\n",
      r.arm, r.seconds, r.least, r.most, r.queue_s, tokens / r.seconds, tflops, percent,
      r.planned_mb, r.peak_mb, r.reserved_mb, r.pinned_mb, r.load_s, r.copied_gb, r.stall_s,
      r.device_allocations, r.loss, r.norm, r.bits);
  std::fflush(stdout);
}

int run(const Options& options) {
  register_cuda_device();
  const DeviceModel model = cuda_device_model();
  const Stream stream{DeviceKind::cuda, cuda_device().open(), 1};
  Ceilings ceilings;
  if (!options.skip_ceilings) {
    ceilings = measure_ceilings(stream, options.ceiling_s);
    fmt::print("{}: bf16 product {:.0f} TFLOP/s, device copy {:.0f} GB/s, host link {:.1f} GB/s\n",
               model.name, ceilings.matrix_tflops, ceilings.device_gb_per_s,
               ceilings.host_link_gb_per_s);
  }
  std::string folder = (fs::temp_directory_path() / "poros-step-bench-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) fail_errno(Fault::io, folder);
  BaseRequest request;
  request.model = write_config(options, fs::path(folder) / "model");
  request.precision = options.precision;
  request.synthetic = true;
  request.seed = 42;
  request.cache = options.cache.empty() ? fs::path(folder) / "cache" : options.cache;
  const double begin = monotonic_s();
  const auto base = open_base(request);
  const Architecture& architecture = base->architecture();
  fmt::print("{} with {} layers, {}, weights {}: base opened in {:.1f} s\n", options.model,
             architecture.layer_count(), options.precision, base->weights(), monotonic_s() - begin);
  std::fflush(stdout);
  if (options.base_only) return kDone;
  const double work = operations(architecture, options);
  const auto tokens = static_cast<double>(options.batch * options.accumulation * options.seq_len);
  std::vector<Result> results;
  int code = kDone;
  for (const std::string& arm : options.arms) {
    try {
      results.push_back(run_arm(arm, *base, options, stream));
      print(results.back(), work, tokens, ceilings);
    } catch (const std::exception& error) {
      fmt::print("{:9} failed: {}\n", arm, error.what());
      code = kFailed;
    }
  }
  for (const Result& result : results) {
    if (result.bits == results.front().bits) continue;
    fmt::print("{} and {} differ in bits\n", results.front().arm, result.arm);
    code = kFailed;
  }
  if (results.size() > 1) {
    fmt::print("time {} / {} = {:.3f}\n", results.back().arm, results.front().arm,
               results.back().seconds / results.front().seconds);
  }
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  return code;
}

}  // namespace
}  // namespace poros::bench

int main(int argc, char** argv) {
  poros::bench::Options options;
  CLI::App app("Time and memory of a training step on this GPU, with random weights.");
  app.add_option("--shape", options.model,
                 "A name below --configs (0.5b, 7b, 32b, 72b), a model folder or a config.json")
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
  app.add_option("--cache", options.cache, "Keep the quantised base here");
  app.add_option("--ceiling-s", options.ceiling_s, "Seconds of the matrix product")
      ->capture_default_str();
  app.add_flag("--skip-ceilings", options.skip_ceilings, "Don't measure what the GPU can do");
  app.add_flag("--base-only", options.base_only, "Build the base in --cache and end");
  CLI11_PARSE(app, argc, argv);
  try {
    return poros::bench::run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "poros-step-bench: {}\n", error.what());
    return poros::kFailed;
  }
}
