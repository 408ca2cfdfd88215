// SPDX-License-Identifier: Apache-2.0
// The few statistics that reports and comparisons use. All of them refuse an empty list.
#pragma once

#include <cstdint>
#include <vector>

namespace poros {

/// The middle value; the mean of the two middle ones for an even count.
[[nodiscard]] double median(std::vector<double> values);

/// Quantile q in [0, 1], linear between the two nearest order statistics (Hyndman and Fan's type 7,
/// numpy's default).
[[nodiscard]] double quantile(std::vector<double> values, double q);

[[nodiscard]] double mean(const std::vector<double>& values);

/// Population standard deviation (divides by n), as older artifacts have it.
[[nodiscard]] double stddev(const std::vector<double>& values);

struct Interval {
  double low = 0, high = 0;
};

/// Percentile bootstrap interval of median(a) / median(b): each list is resampled on its own,
/// `resamples` times, from a fixed seed, so that the same data give the same interval.
/// @param level e.g. 0.95
[[nodiscard]] Interval bootstrap_ratio(const std::vector<double>& a, const std::vector<double>& b,
                                       double level = 0.95, int resamples = 2000,
                                       std::uint64_t seed = 20261201);

/// The same for median(a) alone.
[[nodiscard]] Interval bootstrap_median(const std::vector<double>& a, double level = 0.95,
                                        int resamples = 2000, std::uint64_t seed = 20261201);

}  // namespace poros
