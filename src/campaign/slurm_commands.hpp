// SPDX-License-Identifier: Apache-2.0
// Slurm's commands as short helper processes, without a shell.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/subprocess.hpp"

namespace poros {

/// Runs one of Slurm's commands to its end.
/// @throws Error(Fault::environment): missing, silent for a minute, or failed; with its own words
ProcessResult slurm_command(const std::vector<std::string>& argv);

/// The same, but nullopt where it is missing; its exit code is the caller's to look at.
[[nodiscard]] std::optional<ProcessResult> try_slurm_command(const std::vector<std::string>& argv);

/// A job id as sbatch --parsable prints it: digits.
[[nodiscard]] bool is_job_id(const std::string& text);

}  // namespace poros
