// SPDX-License-Identifier: Apache-2.0
// What Slurm and a campaign's own files say about its batch jobs. Slurm's commands may be absent or
// fail: then the files alone speak, and the failure is told.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.hpp"

namespace poros {

/// A job as slurm/jobs/<id>.json records it when it is submitted.
struct RecordedJob {
  std::string id, role, label, script, submitted_at, continues;
};

/// The jobs that were ever submitted for a campaign, oldest first; files that can't be read are
/// left out. No folder: none.
[[nodiscard]] std::vector<RecordedJob> recorded_jobs(const std::filesystem::path& campaign);

/// Writes slurm/jobs/<id>.json durably.
void record_job(const std::filesystem::path& campaign, const RecordedJob& job);

/// A job that squeue lists.
struct QueuedJob {
  std::string id;  // "12", or "12_3" for a task of an array
  std::string name, state, reason, nodes, ends_at;
  [[nodiscard]] std::string job_id() const { return id.substr(0, id.find('_')); }
};

/// All queued and running jobs of this user.
/// @throws Error(Fault::environment) when squeue is missing or fails
[[nodiscard]] std::vector<QueuedJob> queued_jobs();

/// Those of a campaign: recorded there, or submitted under its name.
[[nodiscard]] std::vector<QueuedJob> campaign_jobs(const std::vector<QueuedJob>& queue,
                                                   const std::filesystem::path& campaign,
                                                   const std::string& name_prefix);

/// The beginning of the names of a campaign's jobs: "poros-<spec_id>-<8 hex of the folder's path>".
[[nodiscard]] std::string job_name_prefix(const std::filesystem::path& campaign,
                                          const std::string& spec_id);

/// For `bench status`: null when the campaign was never submitted, else {problem (null or text),
/// jobs[{id, role, label, state, reason, nodes, ends_at, starts, outcome, exit_code, continued}]}.
/// `continued`: another job went on in its place. `state` is squeue's, else sacct's, else "ENDED"
/// (the job said how), else "UNKNOWN". Never throws for what Slurm does.
[[nodiscard]] Json slurm_status(const std::filesystem::path& campaign);

/// slurm_status for people, with a newline at the end; empty when there is nothing to say.
[[nodiscard]] std::string slurm_status_text(const Json& status);

/// Whether slurm_status lists a job that is queued or running.
[[nodiscard]] bool has_live_jobs(const Json& status);

/// Cancels a campaign's jobs that are queued or running, the gathering one first.
/// @returns the jobs that were cancelled
/// @throws Error(Fault::environment) when Slurm's commands fail
std::vector<std::string> cancel_jobs(const std::filesystem::path& campaign);

}  // namespace poros
