// SPDX-License-Identifier: Apache-2.0
#include "gate_cover.hpp"

#include <algorithm>
#include <set>
#include <tuple>

namespace poros {
namespace {

constexpr int kResident = 2;  // level of kGateResidency

using Pair = std::tuple<std::size_t, std::size_t, int, int>;

std::vector<GateRun> all_runs() {
  std::vector<GateRun> runs = {GateRun{}};
  for (std::size_t factor = 0; factor < kGateFactors; ++factor) {
    std::vector<GateRun> longer;
    for (const GateRun& run : runs) {
      for (int level = 0; level < kGateLevels[factor]; ++level) {
        longer.push_back(run);
        longer.back()[factor] = level;
      }
    }
    runs = std::move(longer);
  }
  return runs;
}

std::vector<Pair> pairs_of(const GateRun& run) {
  std::vector<Pair> pairs;
  for (std::size_t first = 0; first < kGateFactors; ++first) {
    for (std::size_t second = first + 1; second < kGateFactors; ++second) {
      if (!gate_pair_counts(run, first, second)) continue;
      pairs.emplace_back(first, second, run[first], run[second]);
    }
  }
  return pairs;
}

}  // namespace

bool gate_pair_counts(const GateRun& run, std::size_t first, std::size_t second) {
  const auto needs_copies = [](std::size_t factor) {
    return factor == kGateSlots || factor == kGatePrefetch;
  };
  return run[kGateResidency] != kResident || (!needs_copies(first) && !needs_copies(second));
}

std::vector<GateRun> gate_cover() {
  const std::vector<GateRun> candidates = all_runs();
  std::set<Pair> open;
  for (const GateRun& run : candidates) {
    for (const Pair& pair : pairs_of(run)) open.insert(pair);
  }
  std::vector<GateRun> cover;
  while (!open.empty()) {
    const GateRun* best = nullptr;
    std::ptrdiff_t most = 0;
    for (const GateRun& run : candidates) {
      const std::vector<Pair> pairs = pairs_of(run);
      const auto gain = std::count_if(pairs.begin(), pairs.end(),
                                      [&](const Pair& pair) { return open.contains(pair); });
      if (gain > most) {
        most = gain;
        best = &run;
      }
    }
    cover.push_back(*best);
    for (const Pair& pair : pairs_of(*best)) open.erase(pair);
  }
  return cover;
}

std::vector<GatePlan> gate_plans() {
  std::vector<GatePlan> plans;
  for (const GateRun& run : gate_cover()) {
    GateRun plan{};
    std::copy_n(run.begin(), kGatePlanFactors, plan.begin());
    const auto found = std::find_if(plans.begin(), plans.end(),
                                    [&](const GatePlan& known) { return known.plan == plan; });
    if (found == plans.end()) {
      plans.push_back({plan, {run}});
    } else {
      found->runs.push_back(run);
    }
  }
  return plans;
}

}  // namespace poros
