// SPDX-License-Identifier: Apache-2.0
#include "base/clock.hpp"

#include <charconv>
#include <chrono>
#include <cmath>
#include <ctime>

#include "base/error.hpp"

namespace poros {

double monotonic_s() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

std::string utc_now() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm parts{};
  gmtime_r(&now.tv_sec, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", parts.tm_year + 1900,
                     parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                     now.tv_nsec / 1'000'000);
}

double parse_duration_s(const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  const std::string unit(stop, end);
  double scale = -1;
  if (unit.empty() || unit == "s") scale = 1;
  if (unit == "ms") scale = 1e-3;
  if (unit == "m" || unit == "min") scale = 60;
  if (unit == "h") scale = 3600;
  if (unit == "d") scale = 86400;
  if (error != std::errc() || scale < 0 || !std::isfinite(value * scale) || value < 0) {
    fail(Fault::input, "\"{}\" is not a duration (examples: 90s, 1.5h, 500ms)", text);
  }
  return value * scale;
}

}  // namespace poros
