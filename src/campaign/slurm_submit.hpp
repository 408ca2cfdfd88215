// SPDX-License-Identifier: Apache-2.0
// bench submit: a campaign as batch jobs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "campaign/plan.hpp"
#include "campaign/slurm_profile.hpp"
#include "campaign/slurm_script.hpp"

namespace poros {

struct SubmitOptions {
  std::filesystem::path spec;
  std::string cluster;  // name or path of a profile
  std::optional<std::filesystem::path> output_dir;
  std::filesystem::path program;  // this poros, absolute
  bool dry_run = false;           // print the scripts; create and submit nothing
  bool wait = false;              // until all jobs have ended
  bool single_job = false;        // one job, one MPI world, over nodes of all types
  bool json = false;
  std::vector<std::string> only;              // see SelectionOptions
  std::vector<std::string> matrix_arguments;  // for `bench matrix` in the jobs: "--retry", ...
};

/// The work that a campaign has for one GPU type.
struct TypeWork {
  std::string gpu_name;  // as the spec writes it
  std::size_t cells = 0, groups = 0;
  std::optional<double> hours;  // of one GPU, predicted
};

/// By GPU type, in the order of the spec.
[[nodiscard]] std::vector<TypeWork> work_by_type(const CampaignPlan& plan);

/// What a submission would be.
struct Submission {
  std::filesystem::path campaign;
  std::string name_prefix;
  std::vector<SlurmJob> work;
  SlurmJob gather;
};

/// Nodes, time and script of every job. Creates nothing.
/// @throws Error(Fault::input): a GPU type that the profile does not have, types that can't share a
///         job, a text that no batch script can carry
[[nodiscard]] Submission plan_submission(const SubmitOptions& options, const CampaignPlan& plan,
                                         const ClusterProfile& profile);

/// The command. All jobs are submitted or none: they are held until the last one is accepted.
/// Jobs of the campaign that are still queued are named and nothing is submitted.
/// @returns 0; with `wait` the highest exit code of the jobs' last starts, 1 for one that left none
/// @throws Error: input (exit 2); environment when Slurm refuses (exit 1)
int submit_campaign(const SubmitOptions& options);

/// bench cancel: ends a campaign's jobs. @returns 0
int cancel_campaign(const std::filesystem::path& campaign, bool json);

}  // namespace poros
