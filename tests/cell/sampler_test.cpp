// SPDX-License-Identifier: Apache-2.0
// The sampler against invented GPUs (tests/fake_nvml).
#include "cell/sampler.hpp"

#include <cstdlib>

#include <gtest/gtest.h>

namespace poros {
namespace {

/// The library is opened once a process; what it says is read from the environment at each look.
void invent_gpus() {
  ::setenv("POROS_NVML_LIBRARY", FAKE_NVML, 1);
  ::setenv("FAKE_NVML_GPUS", "GPU-aa,NVIDIA H200,143771;GPU-bb,NVIDIA H200,143771", 1);
}

TEST(GpuSampler, SaysNothingForTheCpu) {
  GpuSampler sampler("cpu", "");
  sampler.tick();
  EXPECT_TRUE(sampler.summary().is_null());
  EXPECT_TRUE(sampler.flags().empty());
}

TEST(GpuSampler, LooksAtTheCellsGpuAndItsOwnCost) {
  invent_gpus();
  GpuSampler sampler("cuda", "GPU-bb", 0.0);
  for (int i = 0; i < 3; ++i) sampler.tick();
  const Json found = sampler.summary();
  ASSERT_TRUE(found.is_object());
  EXPECT_EQ(found["gpu_uuid"], "GPU-bb");
  EXPECT_EQ(found["samples"], 5);  // at the start, three ticks, at the end
  EXPECT_GT(found["cost_pct"].get<double>(), 0.0);
  EXPECT_EQ(found["other_processes"], 0);
  EXPECT_TRUE(sampler.flags().empty());
}

TEST(GpuSampler, WaitsForItsInterval) {
  invent_gpus();
  GpuSampler sampler("cuda", "1", 3600);
  for (int i = 0; i < 50; ++i) sampler.tick();
  EXPECT_EQ(sampler.summary()["samples"], 2);
}

TEST(GpuSampler, FlagsAThrottledAndSharedGpu) {
  invent_gpus();
  ::setenv("FAKE_NVML_THROTTLE", "0x24", 1);  // power cap and thermal
  ::setenv("FAKE_NVML_BUSY", "4242", 1);
  GpuSampler sampler("cuda", "", 0.0);
  sampler.tick();
  const Json found = sampler.summary();
  EXPECT_EQ(found["gpu_uuid"], "GPU-aa");
  EXPECT_EQ(found["throttle_part"]["power_cap"], 1.0);
  EXPECT_EQ(found["other_processes"], 1);
  EXPECT_EQ(found["throttle_part"]["thermal"], 1.0);
  EXPECT_EQ(sampler.flags(), (std::vector<std::string>{"throttled", "shared_gpu"}));
  ::unsetenv("FAKE_NVML_THROTTLE");
  ::unsetenv("FAKE_NVML_BUSY");
}

TEST(GpuSampler, AGpuAtItsPowerLimitIsNotFlagged) {
  invent_gpus();
  ::setenv("FAKE_NVML_THROTTLE", "4", 1);
  GpuSampler sampler("cuda", "", 0.0);
  sampler.tick();
  EXPECT_EQ(sampler.summary()["throttle_part"]["power_cap"], 1.0);
  EXPECT_TRUE(sampler.flags().empty());
  ::unsetenv("FAKE_NVML_THROTTLE");
}

}  // namespace
}  // namespace poros
