// SPDX-License-Identifier: Apache-2.0
#include "cell/sampler.hpp"

#include <algorithm>
#include <ctime>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/median.hpp"

namespace poros {
namespace {

constexpr double kMiB = 1048576.0;
constexpr double kThrottledPart = 0.05;  // of the samples; less is an accident of one moment

Json spread(std::vector<double> values) {
  if (values.empty()) return nullptr;
  std::sort(values.begin(), values.end());
  return {{"min", values.front()}, {"median", median_of_sorted(values)}, {"max", values.back()}};
}

template <typename T>
Json difference(const std::optional<T>& first, const std::optional<T>& last) {
  if (!first || !last || *last < *first) return nullptr;  // less: the counter was reset
  return *last - *first;
}

/// CPU time of the calling thread [s].
double thread_cpu_s() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

/// Adds the time that it lives to the sampler's cost.
class GpuSampler::Cost {
 public:
  explicit Cost(GpuSampler& sampler)
      : sampler_(sampler), start_s_(monotonic_s()), start_cpu_s_(thread_cpu_s()) {}
  ~Cost() {
    sampler_.cost_s_ += monotonic_s() - start_s_;
    sampler_.cost_cpu_s_ += thread_cpu_s() - start_cpu_s_;
  }
  Cost(const Cost&) = delete;
  Cost& operator=(const Cost&) = delete;

 private:
  GpuSampler& sampler_;
  double start_s_, start_cpu_s_;
};

GpuSampler::GpuSampler(const std::string& device, const std::string& visible, SamplerPace pace)
    : pace_(pace), started_s_(monotonic_s()) {
  if (device != "cuda") return;
  nvml_ = Nvml::open();
  if (nvml_ == nullptr) return;
  try {
    const std::string token = visible.substr(0, visible.find(','));
    gpu_ = nvml_->resolve(token.empty() ? "0" : token);
  } catch (const Error& error) {
    failure_ = error.what();
  }
  take(Nvml::Detail::full);
}

void GpuSampler::take(Nvml::Detail detail) {
  if (gpu_ == nullptr || !failure_.empty()) return;
  const Cost cost(*this);
  last_s_ = monotonic_s();
  if (detail == Nvml::Detail::full) last_full_s_ = last_s_;
  GpuSample sample;
  try {
    sample = nvml_->sample(*gpu_, detail);
  } catch (const Error& error) {
    failure_ = error.what();
    return;
  }
  const auto add = [&](const char* name, const auto& value) {
    if (value) series_[name].push_back(static_cast<double>(*value));
  };
  add("sm_clock_mhz", sample.sm_clock_mhz);
  add("memory_clock_mhz", sample.memory_clock_mhz);
  add("temperature_c", sample.temperature_c);
  add("power_w", sample.power_w);
  add("pcie_generation", sample.pcie_generation);
  add("pcie_width", sample.pcie_width);
  if (sample.throttle_reasons) {
    for (const std::string& name : throttle_names(*sample.throttle_reasons)) ++throttles_[name];
  }
  memory_peak_ = std::max(memory_peak_, sample.memory_used_bytes.value_or(0));
  if (sample.processes_known) {
    ++known_processes_;
    bool shared = false;
    for (const GpuProcess& process : sample.processes) {
      if (!first_) before_.insert(process.pid);
      shared = shared || (first_ && before_.contains(process.pid));
    }
    shared_samples_ += shared ? 1 : 0;
  }
  if (!first_) first_ = sample;
  latest_ = std::move(sample);
  ++samples_;
}

bool GpuSampler::is_affordable(double now_s) const {
  return cost_s_ <= pace_.largest_part * (now_s - started_s_);
}

void GpuSampler::tick() {
  if (gpu_ == nullptr) return;
  const double now_s = monotonic_s();
  if (now_s - last_s_ < pace_.interval_s || !is_affordable(now_s)) return;
  take(now_s - last_full_s_ >= pace_.full_interval_s ? Nvml::Detail::full : Nvml::Detail::brief);
}

void GpuSampler::observe(CellEvent event, const CellProgress& progress) {
  if (gpu_ == nullptr || progress.phase != "train" || event == CellEvent::heartbeat) return;
  const double now_s = monotonic_s();
  const bool begins = event == CellEvent::phase;
  const bool ends = progress.step == progress.steps;
  if (!begins && (!first_energy_ || progress.step <= first_energy_->step)) return;
  if (!begins && !ends && now_s - last_energy_->taken_s < pace_.interval_s) return;
  const Cost cost(*this);
  const auto energy_j = nvml_->energy_j(*gpu_);
  if (!energy_j) return;
  last_energy_ = EnergyMark{*energy_j, now_s, progress.step};
  if (begins) first_energy_ = last_energy_;
}

Json GpuSampler::summary() {
  take(Nvml::Detail::full);
  if (samples_ == 0) return nullptr;
  const double wall_s = std::max(monotonic_s() - started_s_, 1e-9);
  Json json{{"gpu_uuid", gpu_->uuid},
            {"samples", samples_},
            {"interval_s", pace_.interval_s},
            {"wall_s", wall_s},
            {"cost_s", cost_s_},
            {"cost_cpu_s", cost_cpu_s_},
            {"cost_pct", 100.0 * cost_s_ / wall_s}};
  for (const char* name : {"sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w",
                           "pcie_generation", "pcie_width"}) {
    json[name] = spread(series_[name]);
  }
  json["energy_j"] = difference(first_->energy_j, latest_->energy_j);
  const bool timed = first_energy_ && last_energy_->step > first_energy_->step &&
                     last_energy_->energy_j >= first_energy_->energy_j;
  json["timed_energy_j"] =
      timed ? Json(last_energy_->energy_j - first_energy_->energy_j) : Json(nullptr);
  json["timed_steps"] = timed ? Json(last_energy_->step - first_energy_->step) : Json(nullptr);
  json["ecc_corrected"] = difference(first_->ecc_corrected, latest_->ecc_corrected);
  json["ecc_uncorrected"] = difference(first_->ecc_uncorrected, latest_->ecc_uncorrected);
  Json throttles = Json::object();
  for (const auto& [name, count] : throttles_) {
    throttles[name] = static_cast<double>(count) / static_cast<double>(samples_);
  }
  json["throttle_part"] = first_->throttle_reasons ? throttles : Json(nullptr);
  json["device_memory_peak_mb"] =
      first_->memory_used_bytes ? Json(static_cast<double>(memory_peak_) / kMiB) : Json(nullptr);
  json["device_memory_before_mb"] =
      first_->memory_used_bytes ? Json(static_cast<double>(*first_->memory_used_bytes) / kMiB)
                                : Json(nullptr);
  json["other_processes"] = known_processes_ > 0 ? Json(before_.size()) : Json(nullptr);
  json["failure"] = failure_.empty() ? Json(nullptr) : Json(failure_);
  return json;
}

std::vector<std::string> GpuSampler::flags() const {
  std::vector<std::string> names;
  // A GPU at its power limit runs as its maker meant it to: matrix products get there by
  // themselves.
  const auto often = [this](const auto& entry) {
    return entry.first != "power_cap" &&
           static_cast<double>(entry.second) > kThrottledPart * static_cast<double>(samples_);
  };
  if (std::any_of(throttles_.begin(), throttles_.end(), often)) names.emplace_back("throttled");
  if (shared_samples_ > 0) names.emplace_back("shared_gpu");
  return names;
}

}  // namespace poros
