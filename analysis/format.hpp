// SPDX-License-Identifier: Apache-2.0
// Numbers as people read them: units written out, the same in every locale, "--" for what was not
// measured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace poros {

inline constexpr const char* kMissing = "--";

/// Three significant digits without an exponent where that is readable: 0.451, 12.3, 1,234.
[[nodiscard]] std::string significant(double value, int digits = 3);
/// "1,234,567"
[[nodiscard]] std::string grouped(std::int64_t value);
/// [2^20 bytes] as "812 MiB" or "11.2 GiB" (2^30 bytes).
[[nodiscard]] std::string memory(std::optional<double> mib);
/// [s] as "0.451 s", "38.2 ms", "2 min 5 s".
[[nodiscard]] std::string seconds(std::optional<double> s);
/// "0.449-0.455 s" with an en dash.
[[nodiscard]] std::string seconds_range(std::optional<double> low, std::optional<double> high);
/// "9,080 tokens/s"
[[nodiscard]] std::string token_rate(std::optional<double> tokens_per_s);
/// "1.06x" with the multiplication sign.
[[nodiscard]] std::string factor(std::optional<double> ratio);
/// A difference: "0", "3.1e-07".
[[nodiscard]] std::string difference(std::optional<double> value);
/// The first digits of a hash.
[[nodiscard]] std::string short_hash(std::string_view hash);
/// "1 cell", "3 cells"
[[nodiscard]] std::string counted(std::size_t n, std::string_view one, std::string_view many = {});

}  // namespace poros
