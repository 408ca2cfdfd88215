// SPDX-License-Identifier: Apache-2.0
#include "train/memory_probe.hpp"

#include <cstring>

#include <gtest/gtest.h>
#include <sys/mman.h>

namespace poros {
namespace {

constexpr std::size_t kBytes = std::size_t{64} << 20;

/// Touches and gives back 64 MiB.
void use_and_free() {
  void* memory =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::memset(memory, 1, kBytes);
  ASSERT_EQ(::munmap(memory, kBytes), 0);
}

TEST(MemoryProbe, ThePeakKeepsWhatWasGivenBack) {
  const auto before = host_rss_mb();
  ASSERT_TRUE(before.has_value());
  ASSERT_GT(*before, 0.5);
  use_and_free();
  const auto after = host_rss_mb();
  const auto peak = host_rss_peak_mb();
  ASSERT_TRUE(after.has_value() && peak.has_value());
  EXPECT_LT(*after, *before + 16);
  EXPECT_GT(*peak, *before + 56);
}

TEST(MemoryProbe, AResetForgetsTheEarlierPeak) {
  use_and_free();
  const auto peak = host_rss_peak_mb();
  if (!reset_host_rss_peak()) {
    EXPECT_EQ(host_rss_peak_mb(), peak) << "refused, so nothing may have changed";
    return;
  }
  EXPECT_LT(*host_rss_peak_mb(), *peak - 32);
}

}  // namespace
}  // namespace poros
