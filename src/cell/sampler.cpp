// SPDX-License-Identifier: Apache-2.0
#include "cell/sampler.hpp"

#include <algorithm>

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

}  // namespace

GpuSampler::GpuSampler(const std::string& device, const std::string& visible, double interval_s)
    : interval_s_(interval_s), started_s_(monotonic_s()) {
  if (device != "cuda") return;
  nvml_ = Nvml::open();
  if (nvml_ == nullptr) return;
  try {
    const std::string token = visible.substr(0, visible.find(','));
    gpu_ = nvml_->resolve(token.empty() ? "0" : token);
  } catch (const Error& error) {
    failure_ = error.what();
  }
  take();
}

void GpuSampler::take() {
  if (gpu_ == nullptr || !failure_.empty()) return;
  const double start_s = monotonic_s();
  GpuSample sample;
  try {
    sample = nvml_->sample(*gpu_);
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
  last_s_ = monotonic_s();
  cost_s_ += last_s_ - start_s;
}

void GpuSampler::tick() {
  if (gpu_ != nullptr && monotonic_s() - last_s_ >= interval_s_) take();
}

Json GpuSampler::summary() {
  take();
  if (samples_ == 0) return nullptr;
  const double wall_s = std::max(monotonic_s() - started_s_, 1e-9);
  Json json{{"gpu_uuid", gpu_->uuid},
            {"samples", samples_},
            {"interval_s", interval_s_},
            {"wall_s", wall_s},
            {"cost_pct", 100.0 * cost_s_ / wall_s}};
  for (const char* name : {"sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w",
                           "pcie_generation", "pcie_width"}) {
    json[name] = spread(series_[name]);
  }
  json["energy_j"] = difference(first_->energy_j, latest_->energy_j);
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
