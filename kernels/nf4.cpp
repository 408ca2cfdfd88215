// SPDX-License-Identifier: Apache-2.0
// Double quantisation of NF4's absmax values.
#include "kernels/nf4.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace poros {
namespace {

/// The midpoints of neighbouring values of the dynamic map.
const std::array<float, 255>& midpoints() {
  static const std::array<float, 255> all = [] {
    std::array<float, 255> m{};
    for (std::size_t i = 0; i < m.size(); ++i) {
      m[i] = 0.5F * (nf4_dynamic_map()[i] + nf4_dynamic_map()[i + 1]);
    }
    return m;
  }();
  return all;
}

/// Index of the value that is nearest to y: how many midpoints are below y (for NaN, 0).
std::uint8_t nearest(float y) {
  const auto& m = midpoints();
  return static_cast<std::uint8_t>(std::lower_bound(m.begin(), m.end(), y) - m.begin());
}

/// For each of 65536 evenly spaced y from -1 to 1 the index of the nearest value.
const std::array<std::uint8_t, 65536>& step_table() {
  static const std::array<std::uint8_t, 65536> table = [] {
    std::array<std::uint8_t, 65536> t{};
    for (std::size_t i = 0; i < t.size(); ++i) {
      t[i] = nearest(-1.0F + 2.0F * static_cast<float>(i) / 65535.0F);
    }
    return t;
  }();
  return table;
}

std::uint8_t by_table(float y) {
  const float step = (std::clamp(y, -1.0F, 1.0F) + 1.0F) * 0.5F * 65535.0F + 0.5F;
  return std::isnan(y) ? std::uint8_t{0} : step_table()[static_cast<std::size_t>(step)];
}

}  // namespace

float nf4_absmax_offset(const float* absmax, std::int64_t blocks) {
  if (blocks == 0) return 0;
  double sum = 0;
  for (std::int64_t i = 0; i < blocks; ++i) sum += static_cast<double>(absmax[i]);
  return static_cast<float>(sum / static_cast<double>(blocks));
}

void nf4_quantise_absmax(const float* absmax, std::int64_t blocks, float offset, std::uint8_t* q,
                         float* nested_absmax, Nf4ScaleRule rule) {
  for (std::int64_t begin = 0; begin < blocks; begin += kNf4NestedBlock) {
    const std::int64_t end = std::min(blocks, begin + kNf4NestedBlock);
    float largest = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      largest = std::max(largest, std::abs(absmax[i] - offset));
    }
    nested_absmax[begin / kNf4NestedBlock] = largest;
    const float scale = 1.0F / largest;
    for (std::int64_t i = begin; i < end; ++i) {
      const float y = (absmax[i] - offset) * scale;
      q[i] = !(largest > 0)                  ? std::uint8_t{0}
             : rule == Nf4ScaleRule::nearest ? nearest(y)
                                             : by_table(y);
    }
  }
}

void nf4_dequantise_absmax(const std::uint8_t* q, const float* nested_absmax, float offset,
                           std::int64_t first, std::int64_t count, float* absmax) {
  const auto map = nf4_dynamic_map();
  for (std::int64_t i = 0; i < count; ++i) {
    const float product = map[q[first + i]] * nested_absmax[(first + i) / kNf4NestedBlock];
    absmax[i] = product + offset;
  }
}

}  // namespace poros
