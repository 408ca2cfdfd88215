// SPDX-License-Identifier: Apache-2.0
// Residency decides no bit on the GPU either: loss, every gradient, norm, weights and moments of
// five AdamW steps are those of the resident arm, whatever blocks, slots, prefetch, place of layer
// inputs, budget, pinning or timing. Freed slots are poisoned.
#include "cuda_fixture.hpp"

namespace poros {
namespace {

constexpr std::int64_t kSteps = 5;

struct PlanCase {
  const char* name;
  double dropout;
  std::int64_t micro_batches;
  std::int64_t sweep_rows;  // 0: the default
  const char* compute_dtype;
  const char* model = "deep";
};

class CudaResidency : public CudaTest, public testing::WithParamInterface<PlanCase> {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    const PlanCase& plan = GetParam();
    base_ = random_base(small_config(plan.model), "nf4");
    adapter_ = lively_adapter(*base_, 8, small_targets(plan.model));
    resident_.cuda = true;
    resident_.seq_len = 128;
    resident_.batch_size = 2;
    resident_.micro_batches = plan.micro_batches;
    resident_.sweep_rows = plan.sweep_rows;
    resident_.dropout = plan.dropout;
    resident_.compute_dtype = plan.compute_dtype;
    wanted_ = train_steps(*base_, adapter_, resident_, kSteps);
  }
  void expect_same(const RunSettings& settings, bool copies = true) {
    const DeviceTrace got = train_steps(*base_, adapter_, settings, kSteps);
    expect_equal_bits(got, wanted_);
    EXPECT_EQ(got.counters.block_copies > 0, copies);
  }

  std::unique_ptr<BaseStore> base_;
  Adapter adapter_;
  RunSettings resident_;
  DeviceTrace wanted_;
};

TEST_P(CudaResidency, RepeatsItself) {
  expect_same(resident_, false);
}

TEST_P(CudaResidency, StreamedIsResident) {
  for (const std::int64_t block_size : {1, 2, 4}) {
    for (const std::int64_t slots : {3, 4, 100}) {
      RunSettings streamed = resident_;
      const bool prefetch = (block_size + slots) % 3 != 0;
      streamed.residency = {.kind = ResidencyKind::streamed,
                            .block_size = block_size,
                            .slots = slots,
                            .prefetch = prefetch,
                            .inputs_on_device = (block_size + slots) % 2 == 0};
      streamed.debug.poison_freed_slots = true;
      SCOPED_TRACE(testing::Message() << "block_size " << block_size << ", slots " << slots
                                      << ", prefetch " << prefetch);
      expect_same(streamed);
    }
  }
}

TEST_P(CudaResidency, PartialIsResident) {
  RunSettings settings = resident_;
  const auto bytes = [&](ResidencyKind kind) {
    settings.residency = {.kind = kind, .inputs_on_device = false};
    return make_memory_plan(*base_, plan_for(*base_, settings), adapter_.places, settings.residency)
        .device_bytes();
  };
  const std::uint64_t least = bytes(ResidencyKind::streamed), most = bytes(ResidencyKind::resident);
  settings.residency.kind = ResidencyKind::partial;
  settings.residency.budget_mb = static_cast<std::int64_t>(((least + most) / 2 + (1U << 19)) >> 20);
  settings.debug.poison_freed_slots = true;
  expect_same(settings);
}

TEST_P(CudaResidency, TimingAndPinningChangeNoBit) {
  RunSettings settings = resident_;
  settings.residency = {
      .kind = ResidencyKind::streamed, .block_size = 2, .inputs_on_device = false};
  settings.debug = {.poison_freed_slots = true, .delay_copies_s = 0.002};
  {
    SCOPED_TRACE("slow copies");
    const DeviceTrace slow = train_steps(*base_, adapter_, settings, kSteps);
    expect_equal_bits(slow, wanted_);
    EXPECT_GT(slow.counters.copy_stall_s, 0.001);
  }
  settings.debug = {.poison_freed_slots = true, .delay_compute_s = 0.001};
  {
    SCOPED_TRACE("slow compute");
    expect_same(settings);
  }
  settings.debug = {.poison_freed_slots = true, .refuse_pinning = true};
  {
    SCOPED_TRACE("staging ring");
    expect_same(settings);
  }
  settings.residency.prefetch = false;
  {
    SCOPED_TRACE("staging ring without prefetch");
    expect_same(settings);
  }
}

INSTANTIATE_TEST_SUITE_P(Plans, CudaResidency,
                         testing::Values(PlanCase{"Plain", 0, 1, 0, "bf16"},
                                         PlanCase{"DropoutAccumulation", 0.1, 8, 0, "bf16"},
                                         PlanCase{"Sweeps", 0.1, 8, 512, "bf16"},
                                         PlanCase{"Fp32", 0.1, 2, 0, "fp32"},
                                         PlanCase{"Mixtral", 0.1, 4, 512, "bf16", "mixtral"},
                                         PlanCase{"Qwen3Moe", 0, 4, 0, "bf16", "qwen3_moe"}),
                         [](const testing::TestParamInfo<PlanCase>& made) {
                           return made.param.name;
                         });

}  // namespace
}  // namespace poros
