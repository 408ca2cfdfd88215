// SPDX-License-Identifier: Apache-2.0
// Where a number was measured: an allow-list of facts about machine, build and command line.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.hpp"
#include "cell/redact.hpp"

namespace poros {

/// What this program was built from.
struct BuildInfo {
  std::string version;     // of the project
  std::string git_commit;  // 40 hex digits; empty: not built from a git checkout
  bool git_dirty = false;
  std::string compiler, build_type;
};

[[nodiscard]] const BuildInfo& build_info();

/// {hostname, os, kernel, cpu_model, cpu_cores, memory_mb, nvidia_driver, variables{...},
/// build{...}}; null where the machine does not say. Variables are those of the allow-list (OMP_*,
/// MKL_*, CUDA_*, NCCL_*, SLURM_JOB_* and a few by name), never one with a secret-like name, and
/// user names and passwords are cut from URLs.
[[nodiscard]] Json environment_snapshot(const std::map<std::string, std::string>& environment);

/// A line of /proc/meminfo ("MemTotal", "MemAvailable") [bytes]; empty where it is missing.
[[nodiscard]] std::optional<double> meminfo_bytes(std::string_view name);

/// The command line as a list, redacted by value.
[[nodiscard]] Json command_line(int argc, char** argv, const Redactor& redactor);

/// "https://user:password@host/x" -> "https://host/x", wherever it stands in the text.
[[nodiscard]] std::string without_userinfo(std::string text);

}  // namespace poros
