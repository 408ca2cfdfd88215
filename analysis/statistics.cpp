// SPDX-License-Identifier: Apache-2.0
#include "analysis/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.hpp"
#include "base/median.hpp"

namespace poros {
namespace {

void need_values(const std::vector<double>& values, const char* what) {
  if (values.empty()) fail(Fault::run, "{} of no values", what);
}

double quantile_of_sorted(const std::vector<double>& sorted, double q) {
  const double position = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(std::floor(position));
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double weight = position - static_cast<double>(below);
  return sorted[below] + weight * (sorted[above] - sorted[below]);
}

/// SplitMix64: small, the same on every platform (the standard library's distributions are not).
class Generator {
 public:
  explicit Generator(std::uint64_t seed) : state_(seed) {}
  /// Uniform in [0, n). The bias of the plain product is below n / 2^64.
  std::size_t below(std::size_t n) {
    state_ += 0x9e3779b97f4a7c15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    z ^= z >> 31;
    const double unit = static_cast<double>(z >> 11) * 0x1.0p-53;
    return static_cast<std::size_t>(unit * static_cast<double>(n));
  }
  /// Median of a resample of `values`; `buffer` spares an allocation.
  double resampled_median(const std::vector<double>& values, std::vector<double>& buffer) {
    buffer.resize(values.size());
    for (double& value : buffer) value = values[below(values.size())];
    std::sort(buffer.begin(), buffer.end());
    return median_of_sorted(buffer);
  }

 private:
  std::uint64_t state_;
};

template <typename Statistic>
Interval percentile_interval(Statistic&& statistic, double level, int resamples) {
  std::vector<double> results(static_cast<std::size_t>(resamples));
  for (double& result : results) result = statistic();
  std::sort(results.begin(), results.end());
  const double tail = 0.5 * (1 - level);
  return {quantile_of_sorted(results, tail), quantile_of_sorted(results, 1 - tail)};
}

}  // namespace

double median(std::vector<double> values) {
  need_values(values, "median");
  std::sort(values.begin(), values.end());
  return median_of_sorted(values);
}

double quantile(std::vector<double> values, double q) {
  need_values(values, "quantile");
  std::sort(values.begin(), values.end());
  return quantile_of_sorted(values, q);
}

double mean(const std::vector<double>& values) {
  need_values(values, "mean");
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double stddev(const std::vector<double>& values) {
  const double centre = mean(values);
  double sum = 0;
  for (const double value : values) sum += (value - centre) * (value - centre);
  return std::sqrt(sum / static_cast<double>(values.size()));
}

Interval bootstrap_ratio(const std::vector<double>& a, const std::vector<double>& b, double level,
                         int resamples, std::uint64_t seed) {
  need_values(a, "bootstrap");
  need_values(b, "bootstrap");
  Generator generator(seed);
  std::vector<double> buffer;
  return percentile_interval(
      [&] {
        const double top = generator.resampled_median(a, buffer);
        return top / generator.resampled_median(b, buffer);
      },
      level, resamples);
}

Interval bootstrap_median(const std::vector<double>& a, double level, int resamples,
                          std::uint64_t seed) {
  need_values(a, "bootstrap");
  Generator generator(seed);
  std::vector<double> buffer;
  return percentile_interval([&] { return generator.resampled_median(a, buffer); }, level,
                             resamples);
}

}  // namespace poros
