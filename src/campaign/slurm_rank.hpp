// SPDX-License-Identifier: Apache-2.0
// What a batch script tells its ranks (slurm/templates/campaign.sh).
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "receipts/journal.hpp"

namespace poros {

/// The GPU type of this rank's node as the script announces it: POROS_GPU_TYPE, else this node's
/// entry in POROS_NODE_TYPES ("n1=A100,n3=B300,", by SLURMD_NODENAME or the host's name). Empty
/// where nothing is announced. On a CPU it is the placement label; on a GPU the driver's word
/// counts.
[[nodiscard]] std::string announced_gpu_type();

/// Seconds until work must be on disk: until the job's end (SLURM_JOB_END_TIME) less the warning
/// time (POROS_WARN_S). Negative once that has passed; nullopt outside a job with a limit.
[[nodiscard]] std::optional<double> job_seconds_left();

/// What tells this start of a batch job from every other; empty texts outside a job.
struct BatchStart {
  std::string job, restart, array_task;
};
[[nodiscard]] BatchStart batch_start();

/// Whether a journal's holder is an earlier start of this very job (SLURM_JOB_ID,
/// SLURM_RESTART_COUNT), or the job that this one continues (POROS_CONTINUES). Slurm has ended such
/// a start; should a process of it still write, because its node's slurmd died, the epoch fences
/// it off.
[[nodiscard]] bool is_earlier_start(const LeaseHolder& holder);

/// How to open a journal in a batch job: a lease that an earlier start left is taken over at once.
[[nodiscard]] JournalOptions batch_journal_options(const std::filesystem::path& journal);

}  // namespace poros
