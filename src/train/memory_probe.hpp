// SPDX-License-Identifier: Apache-2.0
// Host memory of this process as the kernel counts it. Fields named _mb are 2^20 bytes.
#pragma once

#include <optional>

namespace poros {

/// Resident set now [2^20 bytes]; nullopt where /proc does not tell.
[[nodiscard]] std::optional<double> host_rss_mb();

/// Largest resident set since the process began or since the last reset (VmHWM) [2^20 bytes].
[[nodiscard]] std::optional<double> host_rss_peak_mb();

/// Sets the peak back to the present resident set (writes 5 to /proc/self/clear_refs).
/// @returns false where the kernel does not allow it: the peak then goes on counting from the
/// start.
bool reset_host_rss_peak();

}  // namespace poros
