// SPDX-License-Identifier: Apache-2.0
#include "train/parity_hash.hpp"

#include <bit>

#include "base/sha256.hpp"

namespace poros {

static_assert(std::endian::native == std::endian::little, "hashes are over little-endian bytes");

std::string parity_hash(std::span<const float> values) {
  Sha256 sha;
  sha.update(values.data(), values.size_bytes());
  return sha.hex().substr(0, 32);
}

std::map<std::string, std::map<std::string, std::string>> parity_hashes(
    const FlatParameters& parameters) {
  std::map<std::string, std::map<std::string, std::string>> hashes;
  for (const ParameterView& view : parameters.views) {
    const auto count = static_cast<std::size_t>(view.rows * view.cols);
    const auto add = [&](const char* kind, const float* buffer) {
      hashes[kind][view.name] = parity_hash({buffer + view.offset, count});
    };
    add("gradient", parameters.gradient);
    add("exp_avg", parameters.exp_avg);
    add("exp_avg_sq", parameters.exp_avg_sq);
    add("weight", parameters.master);
  }
  return hashes;
}

}  // namespace poros
