// SPDX-License-Identifier: Apache-2.0
// `poros-cell train`: a training with checkpoints, over the same step loop as a benchmark's pass.
#pragma once

#include <functional>

#include "cell/train_request.hpp"

namespace poros {

/// Trains to the last step, or until `stop_requested`, and writes into request.output_dir:
/// events.jsonl, checkpoints/ and, at the end, adapter/ in PEFT's format. Progress goes to the
/// event pipe too, and lines to stdout.
/// @param stop_requested asked before each step: true writes a checkpoint and ends the run
/// @returns 0 done; 1 failed, out of memory or diverged; 2 wrong input; 75 stopped. All but wrong
/// use of the folder is told in events.jsonl as well.
int run_training(const TrainRequest& request, const std::function<bool()>& stop_requested);

}  // namespace poros
