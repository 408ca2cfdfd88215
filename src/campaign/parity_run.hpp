// SPDX-License-Identifier: Apache-2.0
// The parity gate of a comparison group: poros against resident, bit by bit.
//
// Record (artifacts/<group key>/parity.<n>.json; its scalar members stand in the receipt too):
//   v 1 · group_key · status ok|error · reason · error_message
//   method_a "poros", method_b "resident", cell_key_a, cell_key_b
//   model_id, display_name, arch, precision, device, hardware
//   bitwise_exact               true, false, or null where it could not be measured
//   parity_loss_max_diff, parity_weight_max_diff, parity_gradient_max_diff,
//   parity_grad_norm_max_diff, parity_moment_max_diff
//                               max|a - b|; 0 where all hashes are equal, else from the tensors of
//                               the first step that differs; null where not measured
//   steps, hashes               compared; first_difference_step (from 1), _kind, _tensor or null
//   differences                 {kind: {max_abs, tensor, index, a, b, elements, unequal}}
//   passes                      [{cell_key, pass, attempt, artifact_path, artifact_sha256}]
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "campaign/artifacts.hpp"
#include "campaign/plan.hpp"
#include "receipts/parity.hpp"

namespace poros {

/// Both arms' parity passes with their dumps, as far as there are any.
struct ParityEvidence {
  const PlannedCell* a = nullptr;
  const PlannedCell* b = nullptr;
  std::vector<RecordedPass> passes;  // those that the record names
  std::optional<HashComparison> hashes;
  std::map<std::string, DumpDifference> dumps;  // empty: no dump was needed or made
  std::string failure;                          // why there is no comparison
};

/// The record's JSON. Pure.
[[nodiscard]] Json parity_record(const ArtifactContext& context, const ParityEvidence& evidence);

/// One line for people: "parity poros = resident: bitwise equal over 25 steps (1204 hashes)".
[[nodiscard]] std::string parity_line(const Json& record);

}  // namespace poros
