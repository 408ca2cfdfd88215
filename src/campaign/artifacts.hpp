// SPDX-License-Identifier: Apache-2.0
// From passes to RunArtifacts: statistics over passes, equal work, and what compares arms. Pure
// functions: the same records give the same bytes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "campaign/arms.hpp"
#include "campaign/plan.hpp"
#include "receipts/pass_record.hpp"
#include "receipts/run_artifact.hpp"

namespace poros {

/// A finished pass with the file that proves it.
struct RecordedPass {
  PassRecord record;
  std::string path, sha256;
};

/// What belongs to a campaign and not to a cell. Machine and build come from the passes' records.
struct ArtifactContext {
  std::string spec_id, spec_sha256, run_id;
  std::int64_t n_passes = 0;  // asked for
};

/// The artifact of one cell. The first pass that did not end ok decides the status; numbers come
/// from the passes that did.
[[nodiscard]] RunArtifact make_artifact(const ArtifactContext& context, const PlannedCell& cell,
                                        const std::vector<RecordedPass>& passes);

/// The artifact of a cell that is not run here.
[[nodiscard]] RunArtifact skipped_artifact(const ArtifactContext& context, const PlannedCell& cell,
                                           const Skip& skip);

/// Checks over the arms of one group that all did the same work, against the reference arm
/// (resident, else peft): token file, initial adapter, trainable parameters, bytes of the quantised
/// base, first-step loss. An arm outside gets the flag suspect and the reason.
void check_equal_work(std::vector<RunArtifact*>& group,
                      const std::vector<const PassRecord*>& first_passes);

/// Fills vram_saved_vs_*, slowdown_vs_* and the other arms' memory, for arms that ended ok and are
/// not suspect; the rest stays null.
void compare_arms(std::vector<RunArtifact*>& group);

/// Largest difference of the first step's loss that equal work explains [nat].
[[nodiscard]] double first_step_tolerance(const std::string& compute_dtype);

}  // namespace poros
