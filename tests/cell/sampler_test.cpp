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

constexpr SamplerPace kAlways{0, 0, 1e9};  // every tick a full look, whatever it costs

TEST(GpuSampler, SaysNothingForTheCpu) {
  GpuSampler sampler("cpu", "");
  sampler.tick();
  EXPECT_TRUE(sampler.summary().is_null());
  EXPECT_TRUE(sampler.flags().empty());
}

TEST(GpuSampler, LooksAtTheCellsGpuAndItsOwnCost) {
  invent_gpus();
  GpuSampler sampler("cuda", "GPU-bb", kAlways);
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
  GpuSampler sampler("cuda", "1", {3600, 3600, 1});
  for (int i = 0; i < 50; ++i) sampler.tick();
  EXPECT_EQ(sampler.summary()["samples"], 2);
}

TEST(GpuSampler, DoesNotLookWhenLooksHaveTakenTheirShareOfTheTime) {
  invent_gpus();
  GpuSampler sampler("cuda", "1", {0, 0, 0});
  for (int i = 0; i < 50; ++i) sampler.tick();
  const Json found = sampler.summary();
  EXPECT_EQ(found["samples"], 2);  // both ends
  EXPECT_GT(found["cost_cpu_s"].get<double>(), 0.0);
  EXPECT_LE(found["cost_cpu_s"].get<double>(), found["cost_s"].get<double>() + 1e-3);
}

TEST(GpuSampler, BriefLooksLeaveOutWhatIsDear) {
  invent_gpus();
  ::setenv("FAKE_NVML_BUSY", "4242", 1);
  const Nvml* nvml = Nvml::open();
  ASSERT_NE(nvml, nullptr);
  const GpuInfo* gpu = nvml->resolve("1");
  const GpuSample brief = nvml->sample(*gpu, Nvml::Detail::brief);
  EXPECT_TRUE(brief.power_w && brief.sm_clock_mhz && brief.throttle_reasons && brief.energy_j);
  EXPECT_TRUE(brief.memory_used_bytes.has_value());
  EXPECT_FALSE(brief.pcie_generation || brief.processes_known);
  const GpuSample full = nvml->sample(*gpu);
  EXPECT_TRUE(full.pcie_generation && full.processes_known);
  ::unsetenv("FAKE_NVML_BUSY");
}

TEST(GpuSampler, EnergyOfTheTimedStepsAlone) {
  invent_gpus();
  ::setenv("FAKE_NVML_ENERGY_MJ", "1000", 1);  // 1 J so far
  GpuSampler sampler("cuda", "GPU-aa", {3600, 3600, 1});
  CellProgress at;
  at.steps = 10;
  at.phase = "warmup";
  sampler.observe(CellEvent::phase, at);
  at.step = 2;
  sampler.observe(CellEvent::step, at);
  ::setenv("FAKE_NVML_ENERGY_MJ", "5000", 1);
  at.phase = "train";
  sampler.observe(CellEvent::phase, at);
  ::setenv("FAKE_NVML_ENERGY_MJ", "9000", 1);
  at.step = 5;
  sampler.observe(CellEvent::step, at);  // within the interval: not looked at
  EXPECT_TRUE(sampler.summary()["timed_energy_j"].is_null());
  ::setenv("FAKE_NVML_ENERGY_MJ", "13000", 1);
  at.step = 10;
  sampler.observe(CellEvent::step, at);
  ::setenv("FAKE_NVML_ENERGY_MJ", "99000", 1);
  at.phase = "finish";
  sampler.observe(CellEvent::phase, at);
  const Json found = sampler.summary();
  EXPECT_DOUBLE_EQ(found["timed_energy_j"].get<double>(), 8.0);
  EXPECT_EQ(found["timed_steps"], 8);
  EXPECT_DOUBLE_EQ(found["energy_j"].get<double>(), 98.0);
  ::unsetenv("FAKE_NVML_ENERGY_MJ");
}

TEST(GpuSampler, FlagsAThrottledAndSharedGpu) {
  invent_gpus();
  ::setenv("FAKE_NVML_THROTTLE", "0x24", 1);  // power cap and thermal
  ::setenv("FAKE_NVML_BUSY", "4242", 1);
  GpuSampler sampler("cuda", "", kAlways);
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
  GpuSampler sampler("cuda", "", kAlways);
  sampler.tick();
  EXPECT_EQ(sampler.summary()["throttle_part"]["power_cap"], 1.0);
  EXPECT_TRUE(sampler.flags().empty());
  ::unsetenv("FAKE_NVML_THROTTLE");
}

}  // namespace
}  // namespace poros
