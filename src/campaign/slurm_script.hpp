// SPDX-License-Identifier: Apache-2.0
// Batch scripts: the templates of slurm/templates, filled in. Every text that a person gave stands
// in quotes, in directives as sbatch reads them and in commands as the shell does.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "campaign/slurm_profile.hpp"

namespace poros {

/// 'text' for a POSIX shell. @throws Error(Fault::input) when it holds a NUL
[[nodiscard]] std::string shell_quote(std::string_view text);

/// "text" for an #SBATCH line. @throws Error(Fault::input) when it holds a control character, which
/// no directive can carry
[[nodiscard]] std::string directive_quote(std::string_view text);

/// "1-02:03:00": days-hours:minutes:seconds, rounded up to whole minutes.
[[nodiscard]] std::string slurm_time(double seconds);

/// One batch job of a campaign.
struct SlurmJob {
  std::string role = "work";  // work | gather
  std::string label;          // GPU type in lower case, "mixed" or "gather"; part of file names
  std::vector<std::string> gpu_types;  // that it serves
  std::int64_t nodes = 1, ranks_per_node = 1;
  std::int64_t tasks = 0;  // of an array; 0: no array
  double time_s = 0;
  std::size_t cells = 0, groups = 0;
  std::string name;    // sbatch --job-name
  std::string file;    // below the campaign folder
  std::string script;  // its text
};

/// What the scripts of one submission have in common.
struct SlurmScriptContext {
  const ClusterProfile& profile;
  std::filesystem::path spec, campaign, program;  // absolute
  std::string name_prefix;                        // of job names
  bool alone = true;  // the only work job: it writes the root journal, no shard
  std::vector<std::string> matrix_arguments{};
};

/// The script of a job for one GPU type.
[[nodiscard]] std::string work_script(const SlurmScriptContext& context, const SlurmJob& job,
                                      const ClusterGpu& gpu);

/// The script of one job over nodes of several types. @param nodes_of how many of each type
[[nodiscard]] std::string mixed_script(const SlurmScriptContext& context, const SlurmJob& job,
                                       const std::vector<const ClusterGpu*>& gpus,
                                       const std::vector<std::int64_t>& nodes_of);

/// The script of the job that gathers and reports.
[[nodiscard]] std::string gather_script(const SlurmScriptContext& context, const SlurmJob& job);

}  // namespace poros
