// SPDX-License-Identifier: Apache-2.0
#include "bench_run.hpp"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/median.hpp"
#include "base/sha256.hpp"
#include "model/token_file.hpp"
#include "plan/layer_roles.hpp"
#include "train/device.hpp"
#include "train/optimizer.hpp"

namespace poros::bench {
namespace {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return median_of_sorted(values);
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

}  // namespace

double operations(const Architecture& architecture, const Options& options) {
  double linears = 0, again = 0, lora = 0;
  for (const LayerShape& layer : architecture.layers) {
    const std::vector<LinearRole> roles = linear_roles(layer);
    for (std::size_t i = 0; i < roles.size(); ++i) {
      const LinearShape& linear = layer.linears[i];
      // A token sees a few of the experts, and they are not adapted.
      const bool expert = roles[i].expert >= 0;
      const double share = expert ? static_cast<double>(layer.mlp.experts_per_token) /
                                        static_cast<double>(layer.mlp.experts)
                                  : 1.0;
      const double size = share * static_cast<double>(linear.in * linear.out);
      linears += size;
      if (expert || roles[i].site != Site::mlp_down) again += size;
      if (expert || roles[i].router) continue;
      lora += 4.0 * static_cast<double>(options.rank * (linear.in + linear.out));
    }
  }
  const double head = static_cast<double>(architecture.hidden * architecture.vocab);
  const auto tokens = static_cast<double>(options.batch * options.accumulation * options.seq_len);
  return 2.0 * tokens * (2.0 * linears + again + 2.0 * head + lora);
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
  cuda_device().limit_memory(cuda_device().facts().total_bytes);  // empties the allocator's cache
  PhaseClock clock(stream);
  Executor executor(base, plan, memory, adapter, stream);
  AdamW optimizer(flat_parameters(executor), {0.01, 1.0}, stream);
  result.load_s = monotonic_s() - begin_load;
  result.planned_mb = static_cast<double>(memory.device_bytes()) / kMiB;
  result.pinned_mb = static_cast<double>(memory.pinned_bytes) / kMiB;
  cuda_device().reset_peaks();

  const auto tokens = static_cast<std::size_t>(options.tokens());
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
      if (options.phases) executor.time_phases(&clock);
    }
    const double begin = monotonic_s();
    (void)executor.run_step({ids, flags}, step);
    const double queued = monotonic_s();
    result.loss = static_cast<double>(executor.loss());
    const bool timed = options.phases && step >= options.warmup;
    if (timed) clock.begin(Phase::optimizer);
    result.norm = static_cast<double>(optimizer.measure_norm().norm);
    optimizer.update(1e-4);
    if (timed) {
      const auto phases = clock.take();
      for (std::size_t i = 0; i < kPhases; ++i) {
        result.phase_s[i] += phases[i] / static_cast<double>(options.steps);
      }
    }
    synchronise(stream);
    if (step == 0) result.first_step_s = monotonic_s() - begin;
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
  if (options.profile) {
    executor.time_phases(nullptr);
    KernelTrace trace;
    for (std::int64_t step = 0; step < options.steps; ++step) {
      (void)executor.run_step({ids, flags}, options.warmup + options.steps + step);
      (void)executor.loss();
      (void)optimizer.measure_norm();
      optimizer.update(1e-4);
    }
    synchronise(stream);
    result.trace = summarise(trace.finish());
  }
  return result;
}

}  // namespace poros::bench
