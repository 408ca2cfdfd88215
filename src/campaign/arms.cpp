// SPDX-License-Identifier: Apache-2.0
#include "campaign/arms.hpp"

#include <algorithm>
#include <array>
#include <climits>

#include <unistd.h>

#include "base/error.hpp"
#include "base/sha256.hpp"
#include "base/text.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

fs::path program_folder() {
  std::array<char, PATH_MAX> path{};
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  if (length <= 0) return ".";
  return fs::path(std::string(path.data(), static_cast<std::size_t>(length))).parent_path();
}

/// The first of folder/relative, for the folders in which a build or an installation keeps things.
fs::path first_existing(const fs::path& relative) {
  const fs::path program = program_folder();
  std::error_code error;
  for (const fs::path& base : {program / ".." / "..", program / "..", program}) {
    if (fs::exists(base / relative, error)) return (base / relative).lexically_normal();
  }
  return {};
}

/// Python of an environment that scripts/bootstrap.sh made: in the prefix that the build was told,
/// else in the checkout's .deps. Empty when there is none.
std::string environment_python(const std::string& name) {
  const fs::path relative = fs::path(name) / "bin" / "python";
  std::error_code error;
  const fs::path told = fs::path(POROS_PREFIX) / relative;
  if (told.is_absolute() && fs::exists(told, error)) return told.string();
  return first_existing(".deps" / relative).string();
}

/// One hash over the runners' files: their names and contents.
std::string hash_of_runners(const fs::path& peers_dir) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(peers_dir)) {
    if (entry.is_regular_file() && entry.path().extension() == ".py") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  Sha256 hash;
  for (const fs::path& file : files) {
    hash.update(file.lexically_relative(peers_dir).string() + " " + sha256_file(file) + "\n");
  }
  return hash.hex();
}

}  // namespace

InstallPaths find_install_paths(const fs::path& cell_program) {
  InstallPaths paths;
  paths.cell_program = cell_program.empty() ? program_folder() / "poros-cell" : cell_program;
  const std::string peers_dir = environment_variable("POROS_PEERS_DIR");
  paths.peers_dir = peers_dir.empty() ? first_existing("src/peers") : fs::path(peers_dir);
  paths.python = environment_variable("POROS_PYTHON");
  if (paths.python.empty()) paths.python = environment_python("python");
  if (paths.python.empty()) paths.python = "python3";
  paths.peers_python = environment_variable("POROS_PEERS_PYTHON");
  if (paths.peers_python.empty()) paths.peers_python = environment_python("peers");
  return paths;
}

bool has_nvidia_gpu() {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc/driver/nvidia/gpus", error)) {
    static_cast<void>(entry);
    return true;
  }
  return fs::exists("/dev/nvidia0", error);
}

std::vector<std::string> protocol_warnings(const std::string& protocol, const std::string& method) {
  if (protocol != "native") return {};
  if (is_own_arm(method)) {
    return {
        "protocol native: this arm trains on the data set with schedule and clipping; the "
        "libraries' arms of the same group do not, so their losses can't be compared with its own"};
  }
  return {
      "protocol native: this arm reuses one synthetic batch in every micro-batch of every step; "
      "its "
      "losses say nothing about training",
      "protocol native: this arm runs a bare AdamW: constant learning rate, no warm-up, no "
      "clipping, the library's own weight decay"};
}

ArmProgram arm_program(const InstallPaths& paths, const std::string& method,
                       const std::string& device) {
  ArmProgram arm;
  if (device == "cuda" && !has_nvidia_gpu()) {
    arm.skip = {
        "no_cuda",
        "no NVIDIA GPU was found on this machine; device: cpu in the spec runs what can run "
        "without one"};
    return arm;
  }
  if (is_own_arm(method)) {
    std::error_code error;
    if (!fs::exists(paths.cell_program, error)) {
      fail(Fault::environment, "{}: the trainer is missing; scripts/bootstrap.sh builds it",
           paths.cell_program.string());
    }
    // The GPU's trainer lies beside the CPU's where it was built with a CUDA toolkit; without one
    // the CPU's says no_cuda.
    fs::path program = paths.cell_program;
    const fs::path with_cuda = fs::path(program).concat("-cuda");
    if (device == "cuda" && fs::exists(with_cuda, error)) program = with_cuda;
    arm.command = {program.string(), "run"};
    arm.build = sha256_file(program);
    return arm;
  }
  if (device == "cpu" && method != "peft") {
    arm.skip = {"needs CUDA", "needs CUDA; the spec says device: cpu"};
    return arm;
  }
  std::error_code error;
  const bool runner = !paths.peers_dir.empty() &&
                      fs::exists(paths.peers_dir / "poros_peers" / (method + ".py"), error);
  if (paths.peers_python.empty() || !runner) {
    arm.skip = {"not_installed",
                fmt::format("not installed; scripts/bootstrap.sh --peers{} installs it",
                            method == "unsloth" ? "=all" : "")};
    return arm;
  }
  arm.command = {paths.peers_python, "-m", "poros_peers." + method};
  arm.environment = {{"PYTHONPATH", paths.peers_dir.string()},
                     {"PYTHONDONTWRITEBYTECODE", "1"},
                     {"PYTHONUNBUFFERED", "1"},
                     {"PYTHONFAULTHANDLER", "1"},
                     {"HF_HUB_OFFLINE", "1"},
                     {"TRANSFORMERS_OFFLINE", "1"},
                     {"TOKENIZERS_PARALLELISM", "false"}};
  arm.build = hash_of_runners(paths.peers_dir);
  return arm;
}

}  // namespace poros
