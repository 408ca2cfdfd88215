// SPDX-License-Identifier: Apache-2.0
#include "train/memory_probe.hpp"

#include <array>
#include <charconv>
#include <string_view>

#include <fcntl.h>
#include <unistd.h>

#include "base/files.hpp"

namespace poros {
namespace {

/// Value of a line such as "VmHWM:     1234 kB" of /proc/self/status [2^20 bytes].
std::optional<double> status_mb(std::string_view key) {
  const UniqueFd fd(::open("/proc/self/status", O_RDONLY | O_CLOEXEC));
  if (!fd) return std::nullopt;
  std::array<char, 8192> buffer{};
  const ssize_t got = ::read(fd.get(), buffer.data(), buffer.size());
  if (got <= 0) return std::nullopt;
  const std::string_view text(buffer.data(), static_cast<std::size_t>(got));
  const auto line = text.find(key);
  if (line == std::string_view::npos) return std::nullopt;
  const auto digits = text.find_first_of("0123456789", line + key.size());
  if (digits == std::string_view::npos) return std::nullopt;
  double kib = 0;
  const auto [end, error] = std::from_chars(text.data() + digits, text.data() + text.size(), kib);
  if (error != std::errc() || end == text.data() + digits) return std::nullopt;
  return kib / 1024.0;
}

}  // namespace

std::optional<double> host_rss_mb() {
  return status_mb("\nVmRSS:");
}

std::optional<double> host_rss_peak_mb() {
  return status_mb("\nVmHWM:");
}

bool reset_host_rss_peak() {
  const UniqueFd fd(::open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC));
  return fd && ::write(fd.get(), "5", 1) == 1;
}

}  // namespace poros
