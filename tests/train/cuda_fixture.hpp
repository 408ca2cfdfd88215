// SPDX-License-Identifier: Apache-2.0
// What the executor's tests on a GPU share. They skip, with a message, where there is none.
#pragma once

#include <gtest/gtest.h>

#include "executor_fixture.hpp"
#include "train/device.hpp"
#include "train/optimizer.hpp"

namespace poros {

class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    register_cuda_device();
    if (!has_cuda()) GTEST_SKIP() << "no GPU here";
  }
};

/// What a run of some steps left behind, in host memory.
struct DeviceTrace {
  std::vector<float> losses, norms;
  std::vector<std::vector<float>> gradients;  // flat, of each step
  std::vector<float> master, exp_avg, exp_avg_sq;
  std::vector<ParameterView> views;
  ExecutorCounters counters;
};

/// `steps` optimizer steps with AdamW over random rows that depend on the step alone.
[[nodiscard]] DeviceTrace train_steps(const BaseStore& base, const Adapter& adapter,
                                      const RunSettings& settings, std::int64_t steps);

/// ||got - wanted|| / ||wanted||; infinite when sizes differ or a value is not finite.
[[nodiscard]] double relative_l2(const float* got, const float* wanted, std::size_t count);

/// The largest relative_l2 of a view's gradient in the first step.
[[nodiscard]] double gradient_distance(const DeviceTrace& got, const DeviceTrace& wanted);

/// Every value of every step by its bits.
void expect_equal_bits(const DeviceTrace& got, const DeviceTrace& wanted);

/// Small models, one a feature of the executor, as text of a config.json.
[[nodiscard]] std::string small_config(const std::string& kind);

/// Which linears of such a model a test adapts; empty: those that are adapted by default.
[[nodiscard]] std::vector<std::string> small_targets(const std::string& kind);

}  // namespace poros
