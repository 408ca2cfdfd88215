// SPDX-License-Identifier: Apache-2.0
#include "gate_tests.hpp"

#include <set>
#include <tuple>

#include <gtest/gtest.h>

namespace poros {
namespace {

class Gate : public testing::TestWithParam<GatePlan> {
 protected:
  void SetUp() override {
    if (!gate_can_run()) GTEST_SKIP() << "no GPU here";
  }
  static const BitwiseGate& gate() {
    static const BitwiseGate made(gate_scale());
    return made;
  }
};

TEST_P(Gate, HowTheBaseIsKeptChangesNoBit) {
  const GateTrace wanted = gate().reference(GetParam().plan);
  for (const GateRun& run : GetParam().runs) gate().expect_same(run, wanted);
}

INSTANTIATE_TEST_SUITE_P(Plans, Gate, testing::ValuesIn(gate_plans()),
                         [](const testing::TestParamInfo<GatePlan>& made) {
                           const GateRun& plan = made.param.plan;
                           return std::string(plan[kGateDropout] == 0 ? "Plain" : "Dropout") +
                                  (plan[kGateAccumulation] == 0 ? "One" : "Eight") +
                                  (plan[kGateRows] == 0 ? "Padded" : "Packed") +
                                  (plan[kGateSeqLen] == 0 ? "Short" : "Long");
                         });

class GateSweeps : public Gate {};

TEST_P(GateSweeps, BlockMajorAndMicroMajorAgreeAtEqualSweepRows) {
  gate().expect_sweeps_agree(GetParam().plan);
}

INSTANTIATE_TEST_SUITE_P(Rows, GateSweeps,
                         testing::Values(GatePlan{{1, 1, 0, 0}, {}}, GatePlan{{0, 1, 1, 0}, {}}),
                         [](const testing::TestParamInfo<GatePlan>& made) {
                           return made.param.plan[kGateRows] == 0 ? "DropoutPadded" : "PlainPacked";
                         });

TEST(GateCover, HoldsEachPairOfLevelsWhereItMeansSomething) {
  const std::vector<GateRun> cover = gate_cover();
  EXPECT_LE(cover.size() + gate_plans().size(), 40U);
  std::set<std::tuple<std::size_t, std::size_t, int, int>> met;
  for (const GateRun& run : cover) {
    for (std::size_t first = 0; first < kGateFactors; ++first) {
      for (std::size_t second = first + 1; second < kGateFactors; ++second) {
        if (gate_pair_counts(run, first, second)) {
          met.insert({first, second, run[first], run[second]});
        }
      }
    }
  }
  std::size_t pairs = 0;
  for (std::size_t first = 0; first < kGateFactors; ++first) {
    for (std::size_t second = first + 1; second < kGateFactors; ++second) {
      pairs += static_cast<std::size_t>(kGateLevels[first] * kGateLevels[second]);
    }
  }
  // All but (resident, a number of slots) and (resident, prefetch).
  EXPECT_EQ(met.size(), pairs - 3 - 2);
}

}  // namespace
}  // namespace poros
