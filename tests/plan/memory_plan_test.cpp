// SPDX-License-Identifier: Apache-2.0
#include "plan/memory_plan.hpp"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "fake_base.hpp"
#include "plan/layer_roles.hpp"
#include "plan/step_buffers.hpp"

namespace poros {
namespace {

NumericalPlan small_plan(const Architecture& architecture) {
  TrainingSpec training;
  training.seq_len = 64;
  training.gradient_accumulation_steps = 2;
  return make_numerical_plan(architecture, training, LoraSpec{}, PorosSpec{},
                             {false, "cpu", "avx2", 1});
}

std::vector<LoraPlace> all_places(const Architecture& architecture) {
  std::vector<LoraPlace> places;
  for (std::int64_t layer = 0; layer < architecture.layer_count(); ++layer) {
    for (const LoraPlace& place :
         places_of(architecture, layer,
                   {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"},
                   3)) {
      places.push_back(place);
    }
  }
  return places;
}

class MemoryPlans : public testing::Test {
 protected:
  FakeBase base_{small_architecture(10)};
  NumericalPlan plan_ = small_plan(base_.architecture());
  std::vector<LoraPlace> places_ = all_places(base_.architecture());

  [[nodiscard]] MemoryPlan plan_with(const ResidencySettings& settings) const {
    return make_memory_plan(base_, plan_, places_, settings);
  }
};

TEST_F(MemoryPlans, BlocksAreRunsOfAlignedSlabs) {
  const MemoryPlan memory = plan_with({.block_size = 4});
  ASSERT_EQ(memory.blocks.size(), 3U);
  EXPECT_EQ(memory.blocks[0].layer_offsets, (std::vector<std::uint64_t>{0, 10240, 20480, 30720}));
  EXPECT_EQ(memory.blocks[0].bytes, 40960U);
  EXPECT_EQ(memory.blocks[2].first_layer, 8);
  EXPECT_EQ(memory.blocks[2].layers, 2);
  EXPECT_EQ(memory.slot_bytes, 40960U);
  EXPECT_EQ(memory.slots, 0);
  EXPECT_EQ(memory.find("base.blocks").bytes, 102400U);
}

TEST_F(MemoryPlans, StreamedTakesSlotsInsteadOfBlocks) {
  const MemoryPlan resident = plan_with({.block_size = 1});
  const MemoryPlan streamed = plan_with(
      {.kind = ResidencyKind::streamed, .block_size = 1, .slots = 3, .inputs_on_device = false});
  EXPECT_EQ(streamed.slots, 3);
  EXPECT_EQ(streamed.find("base.slots").bytes, 3 * 10240U);
  EXPECT_EQ(streamed.find("base.host").bytes, 102400U);
  EXPECT_EQ(streamed.find("base.host").place, MemoryPlace::host);
  EXPECT_THROW((void)streamed.find("base.blocks"), Error);
  EXPECT_LT(streamed.arena_bytes, resident.arena_bytes);
  // More slots than blocks would never be used.
  EXPECT_EQ(plan_with({.kind = ResidencyKind::streamed, .slots = 99}).slots, 10);
}

TEST_F(MemoryPlans, BuffersOfOnePhaseNeverOverlap) {
  const MemoryPlan memory = plan_with({.kind = ResidencyKind::streamed});
  std::set<std::string> names;
  std::map<std::string, BufferPhase> phases;
  for (const StepBuffer& buffer : step_buffers(
           base_.architecture(), plan_, lora_site_groups(base_.architecture(), places_), true)) {
    phases[buffer.name] = buffer.phase;
  }
  const auto phase = [&](const PlannedBuffer& buffer) {
    const auto found = phases.find(buffer.name);
    return found == phases.end() ? BufferPhase::always : found->second;
  };
  const auto begin = [&](const PlannedBuffer& buffer) {
    return buffer.offset + (buffer.borrowed ? memory.borrowed_offset : 0);
  };
  for (const PlannedBuffer& a : memory.buffers) {
    EXPECT_TRUE(names.insert(a.name).second) << a.name;
    if (a.place != MemoryPlace::device) continue;
    EXPECT_EQ(a.offset % 256, 0U) << a.name;
    EXPECT_LE(begin(a) + a.bytes, memory.arena_bytes) << a.name;
    EXPECT_GT(a.bytes, 0U) << a.name;
    for (const PlannedBuffer& b : memory.buffers) {
      if (&a == &b || b.place != MemoryPlace::device) continue;
      // A layer's own buffers are there while it works in its MLP and in its attention.
      const bool in_a_layer = (phase(a) == BufferPhase::layer && b.borrowed) ||
                              (phase(b) == BufferPhase::layer && a.borrowed);
      const bool may_share = phase(a) != phase(b) && phase(a) != BufferPhase::always &&
                             phase(b) != BufferPhase::always && !in_a_layer;
      const bool apart = begin(a) + a.bytes <= begin(b) || begin(b) + b.bytes <= begin(a);
      EXPECT_TRUE(apart || may_share) << a.name << ", " << b.name;
    }
  }
}

TEST_F(MemoryPlans, WhatIsTakenBesideTheArenaHoldsTheLargestPart) {
  NumericalPlan plan = plan_;
  plan.device.cuda = true;
  plan.vocabulary_chunk = 4096;  // a head that is wider than the small MLP
  const MemoryPlan memory = make_memory_plan(base_, plan, places_, {});
  EXPECT_GT(memory.borrowed_bytes[kBorrowedLogits], memory.borrowed_bytes[kBorrowedMlp]);
  for (const std::uint64_t bytes : memory.borrowed_bytes) EXPECT_GE(memory.framework_bytes, bytes);
}

TEST_F(MemoryPlans, GradientsHaveRoomForTheLowRankPartBehindThem) {
  const MemoryPlan memory = plan_with({});
  constexpr std::uint64_t rows = 128, f32 = 4;
  // Rank 3 is padded to 16 columns, a site of three times 3 as well; hidden 64.
  EXPECT_EQ(memory.find("residual.gradient").bytes, rows * (64 + 16) * f32);
  EXPECT_EQ(memory.find("layer.qkv_gradient").bytes, rows * (64 + 2 * 32 + 16) * f32);
  EXPECT_EQ(memory.find("layer.gate_up").bytes, rows * (2 * 96 + 16) * f32);
  // The widest weight: down's 64 x 96 with A's 16 rows below it.
  EXPECT_EQ(memory.find("layer.weight").bytes, (64 + 16) * 96 * f32);
}

TEST(MemoryPlanOfExperts, HoldsWhateverTheRouterChooses) {
  Architecture architecture = small_architecture(1);
  LayerShape& layer = architecture.layers[0];
  layer.mlp.experts = 5;
  layer.mlp.experts_per_token = 2;
  layer.linears.resize(4);
  layer.linears.push_back({"mlp.gate", 5, 64, false, false});
  for (int expert = 0; expert < 5; ++expert) {
    const std::string name = "mlp.experts." + std::to_string(expert) + ".";
    layer.linears.push_back({name + "gate_proj", 96, 64});
    layer.linears.push_back({name + "up_proj", 96, 64});
    layer.linears.push_back({name + "down_proj", 64, 96});
  }
  const FakeBase base(architecture);
  const NumericalPlan plan = small_plan(architecture);
  EXPECT_EQ(plan.expert_row_granule, 32);
  EXPECT_EQ(to_json(plan).at("expert_row_granule"), 32);
  EXPECT_FALSE(to_json(small_plan(small_architecture(1))).contains("expert_row_granule"));
  // 128 tokens of two choices are 256 rows, and each of 5 experts is padded by up to 31: 411, whole
  // granules of 32 are 384.
  const MemoryPlan memory = make_memory_plan(base, plan, {}, {});
  EXPECT_EQ(memory.find("moe.input").bytes, 384U * 64 * 4);
  EXPECT_EQ(memory.find("layer.gate_up").bytes, 384U * 2 * 96 * 4);
  EXPECT_TRUE(memory.find("moe.output").borrowed);
}

TEST_F(MemoryPlans, ABudgetForAllBlocksIsEnoughWhereSlotsTakeMore) {
  // Ten layers in blocks of eight: two slots of eight layers are more than the ten.
  FakeBase large(small_architecture(10), std::uint64_t{1} << 20);
  const auto plan_of = [&](ResidencyKind kind, std::int64_t budget) {
    return make_memory_plan(large, plan_, places_,
                            {.kind = kind, .block_size = 8, .slots = 3, .budget_mb = budget});
  };
  const auto all = plan_of(ResidencyKind::resident, 0).device_bytes();
  ASSERT_GT(plan_of(ResidencyKind::streamed, 0).device_bytes(), all);
  const MemoryPlan kept =
      plan_of(ResidencyKind::partial, static_cast<std::int64_t>((all >> 20) + 1));
  EXPECT_EQ(kept.slots, 0);
}

TEST_F(MemoryPlans, ABudgetKeepsAsManyBlocksAsFit) {
  const std::uint64_t mib = std::uint64_t{1} << 20;
  FakeBase large(small_architecture(10), mib);
  const auto plan_of = [&](ResidencyKind kind, std::int64_t budget) {
    return make_memory_plan(large, plan_, places_,
                            {.kind = kind, .block_size = 1, .slots = 3, .budget_mb = budget});
  };
  const auto count = [](const MemoryPlan& memory) {
    return std::count_if(memory.blocks.begin(), memory.blocks.end(),
                         [](const BlockPlan& block) { return block.resident; });
  };
  const auto least =
      static_cast<std::int64_t>((plan_of(ResidencyKind::streamed, 0).arena_bytes + mib - 1) / mib);
  std::int64_t before = -1;
  for (std::int64_t budget = least; budget <= least + 9; ++budget) {
    const MemoryPlan memory = plan_of(ResidencyKind::partial, budget);
    EXPECT_LE(memory.arena_bytes, static_cast<std::uint64_t>(budget) * mib);
    EXPECT_GE(count(memory), before);
    before = count(memory);
  }
  EXPECT_EQ(before, 10);
  // Of 10 blocks 4 resident ones lie evenly spread.
  const MemoryPlan some = plan_of(ResidencyKind::partial, least + 4);
  ASSERT_EQ(count(some), 4);
  std::vector<std::size_t> where;
  for (std::size_t block = 0; block < some.blocks.size(); ++block) {
    if (some.blocks[block].resident) where.push_back(block);
  }
  EXPECT_EQ(where, (std::vector<std::size_t>{2, 4, 7, 9}));
  try {
    (void)plan_of(ResidencyKind::partial, least - 1);
    FAIL() << "a budget below the least is refused";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(std::to_string(least)), std::string::npos)
        << error.what();
  }
}

TEST_F(MemoryPlans, MatricesOfOneSiteLieOneAfterTheOther) {
  const MemoryPlan memory = plan_with({});
  const auto slice = [&](std::size_t place) { return memory.adapters[place]; };
  EXPECT_EQ(slice(0).a_offset, 0);
  EXPECT_EQ(slice(1).a_offset, 3 * 64);  // A of k behind A of q: one matrix
  EXPECT_EQ(slice(2).a_offset, 2 * 3 * 64);
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  std::int64_t parameters = 0;
  for (std::size_t place = 0; place < places_.size(); ++place) {
    const std::int64_t a = places_[place].rank * places_[place].in;
    const std::int64_t b = places_[place].rank * places_[place].out;
    ranges.emplace_back(slice(place).a_offset, slice(place).a_offset + a);
    ranges.emplace_back(slice(place).b_offset, slice(place).b_offset + b);
    parameters += a + b;
  }
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t index = 1; index < ranges.size(); ++index) {
    EXPECT_LE(ranges[index - 1].second, ranges[index].first);
  }
  EXPECT_LE(ranges.back().second, memory.flat_elements);
  EXPECT_EQ(memory.parameters, parameters);
  EXPECT_EQ(memory.find("adapter.master").bytes,
            static_cast<std::uint64_t>(memory.flat_elements) * 4);
}

TEST_F(MemoryPlans, RefusesSettingsOutOfRange) {
  EXPECT_THROW((void)plan_with({.block_size = 0}), Error);
  EXPECT_THROW((void)plan_with({.kind = ResidencyKind::streamed, .slots = 2}), Error);
  EXPECT_THROW((void)residency_settings("peft", PorosSpec{}), Error);
  std::vector<LoraPlace> unknown = places_;
  unknown[0].linear = "self_attn.z_proj";
  EXPECT_THROW((void)make_memory_plan(base_, plan_, unknown, {}), Error);
}

TEST(ResidencySettingsOfASpec, ResidentAndPoros) {
  PorosSpec poros;
  poros.block_size = 2;
  const ResidencySettings resident = residency_settings("resident", poros);
  EXPECT_EQ(resident.kind, ResidencyKind::resident);
  EXPECT_TRUE(resident.inputs_on_device);
  const ResidencySettings streamed = residency_settings("poros", poros);
  EXPECT_EQ(streamed.kind, ResidencyKind::streamed);
  EXPECT_FALSE(streamed.inputs_on_device);
  EXPECT_EQ(streamed.block_size, 2);
  poros.vram_budget_mb = 900;
  poros.layer_inputs = "device";
  const ResidencySettings partial = residency_settings("poros", poros);
  EXPECT_EQ(partial.kind, ResidencyKind::partial);
  EXPECT_EQ(partial.budget_mb, 900);
  EXPECT_TRUE(partial.inputs_on_device);
}

TEST(LinearRoles, DenseFusedAndExperts) {
  Architecture architecture = small_architecture(1);
  const std::vector<LinearRole> dense = linear_roles(architecture.layers[0]);
  ASSERT_EQ(dense.size(), 7U);
  EXPECT_EQ(dense[2].site, Site::attention_in);
  EXPECT_EQ(dense[2].part, 2);
  EXPECT_EQ(dense[6].site, Site::mlp_down);

  LayerShape moe = architecture.layers[0];
  moe.mlp.experts = 2;
  moe.mlp.experts_per_token = 1;
  moe.linears.resize(4);
  moe.linears.push_back({"mlp.gate", 2, 64, false, false});
  for (const char* expert : {"mlp.experts.0.", "mlp.experts.1."}) {
    for (const char* linear : {"gate_proj", "up_proj", "down_proj"}) {
      moe.linears.push_back({std::string(expert) + linear, 96, 64});
    }
  }
  const std::vector<LinearRole> experts = linear_roles(moe);
  ASSERT_EQ(experts.size(), 11U);
  EXPECT_TRUE(experts[4].router);
  EXPECT_EQ(experts[9].expert, 1);
  EXPECT_EQ(experts[9].part, 1);
  architecture.layers[0] = moe;
  EXPECT_THROW((void)lora_site_groups(architecture, places_of(architecture, 0, {"mlp.gate"}, 2)),
               Error);
  moe.linears.pop_back();
  EXPECT_THROW((void)linear_roles(moe), Error);
}

}  // namespace
}  // namespace poros
