// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace poros {

/// Seconds on CLOCK_MONOTONIC: for durations and deadlines, never for records.
[[nodiscard]] double monotonic_s();

/// Now as "2026-12-01T03:13:30.123Z" (UTC), whatever the locale.
[[nodiscard]] std::string utc_now();

/// Parses "90", "90s", "1.5h", "500ms", "10m" to seconds.
/// @throws Error(Fault::input) on NaN, negative, overflow or text left over.
[[nodiscard]] double parse_duration_s(const std::string& text);

}  // namespace poros
