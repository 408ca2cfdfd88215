// SPDX-License-Identifier: Apache-2.0
// Filling a PassRecord from what a run of the trainer shows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cell/request.hpp"
#include "receipts/pass_record.hpp"
#include "train/arm/session.hpp"
#include "train/trainer.hpp"

namespace poros {

/// A record that says whose it is and when it began; status ok, nothing measured.
[[nodiscard]] PassRecord begin_record(const CellRequest& request);

/// Adds one step to the series. In a parity pass, which is not timed, s_per_step stays empty.
void add_step(PassRecord& record, const StepReport& report, const StepMemory& memory);

/// Median of the values after the first `warmup`; nullopt when none is left.
[[nodiscard]] std::optional<double> median_after(const std::vector<double>& values,
                                                 std::int64_t warmup);

/// Sets status, reason and message for a loop that ended before its last step.
void record_end(PassRecord& record, const TrainSummary& summary, std::int64_t steps);

}  // namespace poros
