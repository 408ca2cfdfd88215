// SPDX-License-Identifier: Apache-2.0
#include "analysis/format.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace poros {
namespace {

/// Decimals that leave `digits` significant ones.
int decimals_for(double value, int digits) {
  const double size = std::abs(value);
  if (size == 0) return 0;
  const int exponent = static_cast<int>(std::floor(std::log10(size)));
  return std::clamp(digits - 1 - exponent, 0, 12);
}

std::string with_groups(std::string digits) {
  const std::size_t begin = !digits.empty() && digits[0] == '-' ? 1 : 0;
  const std::size_t end = std::min(digits.find('.'), digits.size());
  for (std::size_t at = end; at > begin + 3;) {
    at -= 3;
    digits.insert(at, ",");
  }
  return digits;
}

}  // namespace

std::string significant(double value, int digits) {
  const double size = std::abs(value);
  if (size != 0 && (size < 1e-4 || size >= 1e9)) return fmt::format("{:.{}e}", value, digits - 1);
  std::string text = fmt::format("{:.{}f}", value, decimals_for(value, digits));
  return with_groups(std::move(text));
}

std::string grouped(std::int64_t value) {
  return with_groups(std::to_string(value));
}

std::string memory(std::optional<double> mib) {
  if (!mib) return kMissing;
  return *mib < 1024 ? significant(*mib) + " MiB" : significant(*mib / 1024) + " GiB";
}

std::string seconds(std::optional<double> s) {
  if (!s) return kMissing;
  if (*s > 0 && *s < 0.1) return significant(*s * 1000) + " ms";
  if (*s < 120) return significant(*s) + " s";
  const auto whole = static_cast<std::int64_t>(std::llround(*s));
  return fmt::format("{} min {} s", whole / 60, whole % 60);
}

std::string seconds_range(std::optional<double> low, std::optional<double> high) {
  if (!low || !high) return kMissing;
  const bool milliseconds = *high > 0 && *high < 0.1;
  const double scale = milliseconds ? 1000 : 1;
  return fmt::format("{}\u2013{} {}", significant(*low * scale), significant(*high * scale),
                     milliseconds ? "ms" : "s");
}

std::string token_rate(std::optional<double> tokens_per_s) {
  return tokens_per_s ? significant(*tokens_per_s) + " tokens/s" : kMissing;
}

std::string factor(std::optional<double> ratio) {
  return ratio ? significant(*ratio) + "\u00d7" : kMissing;
}

std::string difference(std::optional<double> value) {
  if (!value) return kMissing;
  return *value == 0 ? "0" : fmt::format("{:.1e}", *value);
}

std::string short_hash(std::string_view hash) {
  return hash.empty() ? kMissing : std::string(hash.substr(0, 12));
}

std::string counted(std::size_t n, std::string_view one, std::string_view many) {
  const std::string plural = many.empty() ? std::string(one) + "s" : std::string(many);
  return fmt::format("{} {}", grouped(static_cast<std::int64_t>(n)),
                     n == 1 ? std::string(one) : plural);
}

}  // namespace poros
