// SPDX-License-Identifier: Apache-2.0
#include "plan/numerical_plan.hpp"

#include <functional>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "fake_base.hpp"
#include "plan/memory_plan.hpp"

namespace poros {
namespace {

struct Inputs {
  Architecture architecture = small_architecture(4);
  TrainingSpec training;
  LoraSpec lora;
  PorosSpec poros;
  DeviceModel device = {false, "cpu", "avx512", 2};
  [[nodiscard]] NumericalPlan plan() const {
    return make_numerical_plan(architecture, training, lora, poros, device);
  }
};

TEST(NumericalPlan, OneSweepHoldsEightMicroBatchesOf512) {
  const NumericalPlan plan = Inputs{}.plan();
  EXPECT_EQ(plan.micro_batches, 8);
  EXPECT_EQ(plan.micro_batches_per_sweep, 8);
  EXPECT_EQ(plan.sweeps, 1);
  EXPECT_EQ(plan.row_capacity(), 4096);
  EXPECT_EQ(plan.row_counts,
            (std::vector<std::int64_t>{512, 1024, 1536, 2048, 2560, 3072, 3584, 4096}));
  EXPECT_EQ(plan.padded_rows(1), 512);
  EXPECT_EQ(plan.padded_rows(512), 512);
  EXPECT_EQ(plan.padded_rows(513), 1024);
  EXPECT_EQ(plan.padded_rows(4096), 4096);
  EXPECT_THROW((void)plan.padded_rows(4097), Error);
}

TEST(NumericalPlan, SweepsAreRunsOfWholeMicroBatches) {
  Inputs inputs;
  inputs.training.gradient_accumulation_steps = 20;
  EXPECT_EQ(inputs.plan().sweeps, 3);  // 8, 8 and 4
  inputs.poros.sweep_rows = 1100;
  EXPECT_EQ(inputs.plan().micro_batches_per_sweep, 2);
  EXPECT_EQ(inputs.plan().sweeps, 10);
  inputs.poros.accumulation = "micro_major";
  EXPECT_EQ(inputs.plan().micro_batches_per_sweep, 1);
  EXPECT_EQ(inputs.plan().sweeps, 20);
  // One micro-batch that is larger than the default limit is a sweep of its own.
  inputs.poros = {};
  inputs.training.batch_size = 16;
  EXPECT_EQ(inputs.plan().micro_batches_per_sweep, 1);
  EXPECT_EQ(inputs.plan().row_capacity(), 8192);
}

TEST(NumericalPlan, TheHashKnowsWhatDecidesBitsAndNothingElse) {
  const std::string hash = plan_hash(Inputs{}.plan());
  EXPECT_EQ(hash.size(), 64U);
  const auto hash_with = [](const std::function<void(Inputs&)>& change) {
    Inputs inputs;
    change(inputs);
    return plan_hash(inputs.plan());
  };
  // Where and how blocks wait: the same plan.
  EXPECT_EQ(hash, hash_with([](Inputs& in) { in.poros.block_size = 1; }));
  EXPECT_EQ(hash, hash_with([](Inputs& in) { in.poros.enable_prefetch = false; }));
  EXPECT_EQ(hash, hash_with([](Inputs& in) { in.poros.layer_inputs = "device"; }));
  EXPECT_EQ(hash, hash_with([](Inputs& in) { in.poros.vram_budget_mb = 100; }));
  EXPECT_EQ(hash, hash_with([](Inputs& in) { in.training.steps = 7; }));
  // What changes the arithmetic.
  const std::vector<std::function<void(Inputs&)>> changes = {
      [](Inputs& in) { in.poros.sweep_rows = 512; },
      [](Inputs& in) { in.poros.accumulation = "micro_major"; },
      [](Inputs& in) { in.training.seq_len = 256; },
      [](Inputs& in) { in.training.batch_size = 2; },
      [](Inputs& in) { in.training.seed = 43; },
      [](Inputs& in) { in.training.compute_dtype = "bf16"; },
      [](Inputs& in) { in.lora.dropout = 0; },
      [](Inputs& in) { in.device.threads = 1; },
      [](Inputs& in) { in.device.instruction_set = "avx2"; },
      [](Inputs& in) { in.architecture = small_architecture(5); },
  };
  for (std::size_t index = 0; index < changes.size(); ++index) {
    EXPECT_NE(hash, hash_with(changes[index])) << "change " << index;
  }
}

TEST(NumericalPlan, ComputeTypeFollowsTheDevice) {
  Inputs inputs;
  EXPECT_EQ(inputs.plan().compute, ComputeType::fp32);
  inputs.device = {true, "NVIDIA H200", "", 1};
  EXPECT_EQ(inputs.plan().compute, ComputeType::bf16);
  EXPECT_EQ(inputs.plan().attention[0], AttentionPath::flash);
  // Soft-capped scores are not what flash attention computes.
  inputs.architecture.layers[1].attention.softcap = 50;
  EXPECT_EQ(inputs.plan().attention[0], AttentionPath::flash);
  EXPECT_EQ(inputs.plan().attention[1], AttentionPath::blocked);
}

TEST(NumericalPlan, RefusesWhatDoesNotFit) {
  const auto refuses = [](const std::function<void(Inputs&)>& change) {
    Inputs inputs;
    change(inputs);
    EXPECT_THROW((void)inputs.plan(), Error);
  };
  refuses([](Inputs& in) { in.poros.sweep_rows = 511; });
  refuses([](Inputs& in) { in.training.seq_len = 40000; });
  refuses([](Inputs& in) { in.training.seq_len = 0; });
  refuses([](Inputs& in) { in.training.compute_dtype = "fp8"; });
  refuses([](Inputs& in) { in.lora.dropout = 1.0; });
  EXPECT_THROW((void)cpu_device_model(0), Error);
}

TEST(NumericalPlan, LogitsOfAChunkStaySmall) {
  Inputs inputs;
  inputs.architecture.vocab = 150000;
  for (const std::int64_t micro_batches : {1, 8}) {
    inputs.training.gradient_accumulation_steps = micro_batches;
    const NumericalPlan plan = inputs.plan();
    EXPECT_LE(plan.row_capacity() * plan.vocabulary_chunk, std::int64_t{1} << 22);
    EXPECT_GE(plan.vocabulary_chunk, 512);
  }
}

}  // namespace
}  // namespace poros
