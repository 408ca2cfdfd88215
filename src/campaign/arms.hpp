// SPDX-License-Identifier: Apache-2.0
// Which program runs a method here, or why none can.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace poros {

/// Why a cell isn't run: goes into its record.
struct Skip {
  std::string reason;   // "needs CUDA", no_cuda, not_installed
  std::string message;  // for people, with what to do
};

struct ArmProgram {
  std::vector<std::string> command;                // the request's path follows
  std::map<std::string, std::string> environment;  // added to the cell's
  std::string build;  // sha256 of poros-cell, or of the Python runners' files
  std::optional<Skip> skip;
};

/// Folders that the project's own files may lie in, seen from this program.
struct InstallPaths {
  std::filesystem::path cell_program;  // poros-cell
  std::filesystem::path peers_dir;     // src/peers; empty where it isn't installed
  std::string python;                  // for tokenising: POROS_PYTHON, bootstrap's, else python3
  std::string peers_python;            // POROS_PEERS_PYTHON or bootstrap's; empty: not installed
};

/// @param cell_program empty: poros-cell beside this program
[[nodiscard]] InstallPaths find_install_paths(const std::filesystem::path& cell_program);

/// True when an NVIDIA driver shows at least one GPU. Opens no CUDA context.
[[nodiscard]] bool has_nvidia_gpu();

/// The program for a method on a device.
/// @throws Error(Fault::environment) when poros-cell itself is missing
[[nodiscard]] ArmProgram arm_program(const InstallPaths& paths, const std::string& method,
                                     const std::string& device);

/// What a reader of a cell's figures must know of `protocol: native`, for people; empty for shared.
[[nodiscard]] std::vector<std::string> protocol_warnings(const std::string& protocol,
                                                         const std::string& method);

/// True for the arms that poros-cell runs.
[[nodiscard]] inline bool is_own_arm(const std::string& method) {
  return method == "poros" || method == "resident";
}

}  // namespace poros
