// SPDX-License-Identifier: Apache-2.0
// Residency decides no bit: whatever the block size, slots, prefetch, place of the layers' inputs,
// budget or timing, loss and gradients of several steps are those of the resident arm. Freed slots
// are poisoned, so that a read of a stale block gives NaN.
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "executor_fixture.hpp"

namespace poros {
namespace {

constexpr const char* kModel = R"({
  "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 64,
  "intermediate_size": 128, "num_hidden_layers": 9, "num_attention_heads": 4,
  "num_key_value_heads": 2, "vocab_size": 160, "max_position_embeddings": 128,
  "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": true,
  "hidden_act": "silu", "torch_dtype": "bfloat16"})";

constexpr std::int64_t kSteps = 3, kVocab = 160, kSeqLen = 40;

/// Loss and flat gradient of each step, with a plain descent between the steps.
struct Trace {
  std::vector<float> losses;
  std::vector<std::vector<float>> gradients;
  ExecutorCounters counters;
};

Trace run(const BaseStore& base, const Adapter& adapter, const RunSettings& settings) {
  const auto executor = make_executor(base, adapter, settings);
  Trace trace;
  const auto elements = static_cast<std::size_t>(executor->flat_elements());
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const TokenRows rows = random_rows(settings.batch_size * settings.micro_batches, kSeqLen,
                                       kVocab, true, 100 + static_cast<std::uint64_t>(step));
    (void)executor->run_step(rows.batch(), step);
    trace.losses.push_back(executor->loss());
    trace.gradients.emplace_back(executor->gradient(), executor->gradient() + elements);
    for (std::size_t index = 0; index < elements; ++index) {
      executor->master()[index] -= 0.5F * executor->gradient()[index];
    }
  }
  trace.counters = executor->counters();
  return trace;
}

void expect_equal_bits(const Trace& got, const Trace& wanted) {
  ASSERT_EQ(got.losses.size(), wanted.losses.size());
  for (std::size_t step = 0; step < wanted.losses.size(); ++step) {
    ASSERT_FALSE(std::isnan(wanted.losses[step]));
    EXPECT_EQ(std::memcmp(&got.losses[step], &wanted.losses[step], sizeof(float)), 0)
        << "loss of step " << step << ": " << got.losses[step] << ", " << wanted.losses[step];
    ASSERT_EQ(got.gradients[step].size(), wanted.gradients[step].size());
    EXPECT_EQ(std::memcmp(got.gradients[step].data(), wanted.gradients[step].data(),
                          wanted.gradients[step].size() * sizeof(float)),
              0)
        << "gradients of step " << step;
  }
}

/// What decides bits.
struct PlanCase {
  const char* name;
  double dropout;
  std::int64_t micro_batches;
  std::int64_t sweep_rows;  // 0: one sweep
  const char* accumulation;
  const char* compute_dtype;
  int threads = 1;
};

RunSettings settings_of(const PlanCase& plan) {
  RunSettings settings;
  settings.seq_len = kSeqLen;
  settings.batch_size = 2;
  settings.micro_batches = plan.micro_batches;
  settings.sweep_rows = plan.sweep_rows;
  settings.accumulation = plan.accumulation;
  settings.compute_dtype = plan.compute_dtype;
  settings.dropout = plan.dropout;
  settings.threads = plan.threads;
  return settings;
}

class ResidencyBits : public testing::TestWithParam<PlanCase> {
 protected:
  static const BaseStore& base() {
    static const auto store = random_base(kModel, "nf4");
    return *store;
  }
  static const Adapter& adapter() {
    static const Adapter made = lively_adapter(base(), 4);
    return made;
  }
};

TEST_P(ResidencyBits, EqualTheResidentArm) {
  const RunSettings resident = settings_of(GetParam());
  const Trace wanted = run(base(), adapter(), resident);
  EXPECT_EQ(wanted.counters.block_copies, 0U);
  // A second run in this process repeats its bits.
  expect_equal_bits(run(base(), adapter(), resident), wanted);

  for (const std::int64_t block_size : {1, 2, 4}) {
    for (const std::int64_t slots : {3, 4, 100}) {
      for (const bool prefetch : {true, false}) {
        RunSettings streamed = resident;
        // The other settings change along, so that each meets each.
        streamed.residency = {.kind = ResidencyKind::streamed,
                              .block_size = block_size,
                              .slots = slots,
                              .prefetch = prefetch,
                              .inputs_on_device = (block_size + slots) % 2 == 0};
        streamed.debug.poison_freed_slots = true;
        SCOPED_TRACE(testing::Message() << "block_size " << block_size << ", slots " << slots
                                        << ", prefetch " << prefetch);
        const Trace got = run(base(), adapter(), streamed);
        expect_equal_bits(got, wanted);
        EXPECT_GT(got.counters.block_copies, 0U);
      }
    }
  }
}

TEST_P(ResidencyBits, PartialAndBlockSizesOfTheResidentArm) {
  RunSettings settings = settings_of(GetParam());
  const Trace wanted = run(base(), adapter(), settings);
  settings.residency.block_size = 4;
  settings.residency.inputs_on_device = false;
  expect_equal_bits(run(base(), adapter(), settings), wanted);

  // A budget between all streamed and all resident.
  settings.residency = {.kind = ResidencyKind::streamed, .block_size = 1, .slots = 3};
  const NumericalPlan plan = plan_for(base(), settings);
  const auto bytes = [&] {
    return make_memory_plan(base(), plan, adapter().places, settings.residency).arena_bytes;
  };
  const std::uint64_t least = bytes();
  settings.residency.kind = ResidencyKind::resident;
  const std::uint64_t most = bytes();
  settings.residency.kind = ResidencyKind::partial;
  settings.residency.budget_mb =
      static_cast<std::int64_t>(((least + most) / 2 + (1U << 20) - 1) >> 20);
  settings.debug.poison_freed_slots = true;
  const MemoryPlan memory = make_memory_plan(base(), plan, adapter().places, settings.residency);
  std::int64_t resident = 0;
  for (const BlockPlan& block : memory.blocks) resident += block.resident ? 1 : 0;
  EXPECT_GT(resident, 0);
  const Trace got = run(base(), adapter(), settings);
  expect_equal_bits(got, wanted);
}

INSTANTIATE_TEST_SUITE_P(
    Plans, ResidencyBits,
    testing::Values(PlanCase{"Plain", 0, 1, 0, "block_major", "fp32"},
                    PlanCase{"Dropout", 0.1, 1, 0, "block_major", "fp32"},
                    PlanCase{"Accumulation", 0.1, 4, 0, "block_major", "fp32", 2},
                    PlanCase{"TwoSweeps", 0.1, 4, 160, "block_major", "fp32"},
                    PlanCase{"MicroMajor", 0, 4, 0, "micro_major", "fp32"},
                    PlanCase{"Bf16", 0.1, 4, 160, "block_major", "bf16"}),
    [](const testing::TestParamInfo<PlanCase>& made) { return made.param.name; });

TEST(ResidencyTiming, SlowCopiesAndSlowComputeChangeNoBit) {
  const auto base = random_base(kModel, "nf4");
  const Adapter adapter = lively_adapter(*base, 4);
  const PlanCase plan{"", 0.1, 2, 0, "block_major", "fp32"};
  const Trace wanted = run(*base, adapter, settings_of(plan));
  RunSettings streamed = settings_of(plan);
  streamed.residency = {.kind = ResidencyKind::streamed, .block_size = 2, .slots = 3};
  streamed.debug = {.poison_freed_slots = true, .delay_copies_s = 0.004};
  const Trace slow_copies = run(*base, adapter, streamed);
  expect_equal_bits(slow_copies, wanted);
  EXPECT_GT(slow_copies.counters.copy_stall_s, 0);
  streamed.debug = {.poison_freed_slots = true, .delay_compute_s = 0.002};
  expect_equal_bits(run(*base, adapter, streamed), wanted);
}

TEST(ResidencyExperts, EqualTheResidentArm) {
  const auto base = random_base(R"({
    "model_type": "mixtral", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 160,
    "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    "torch_dtype": "bfloat16"})",
                                "nf4");
  const Adapter adapter = lively_adapter(*base, 4);
  RunSettings settings = settings_of({"", 0.1, 2, 0, "block_major", "fp32"});
  const Trace wanted = run(*base, adapter, settings);
  settings.residency = {.kind = ResidencyKind::streamed, .inputs_on_device = false};
  settings.debug.poison_freed_slots = true;
  expect_equal_bits(run(*base, adapter, settings), wanted);
}

TEST(ResidencyMemory, TheArenaTakesWhatThePlanSays) {
  const auto base = random_base(kModel, "nf4");
  const Adapter adapter = lively_adapter(*base, 4);
  RunSettings settings = settings_of({"", 0.1, 2, 0, "block_major", "fp32"});
  for (const ResidencyKind kind : {ResidencyKind::resident, ResidencyKind::streamed}) {
    settings.residency = {.kind = kind, .block_size = 2, .inputs_on_device = false};
    const MemoryPlan memory =
        make_memory_plan(*base, plan_for(*base, settings), adapter.places, settings.residency);
    const auto executor = make_executor(*base, adapter, settings);
    EXPECT_EQ(executor->counters().arena_bytes, memory.arena_bytes);
    EXPECT_EQ(executor->counters().host_bytes, memory.host_bytes);
  }
}

}  // namespace
}  // namespace poros
