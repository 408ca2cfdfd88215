// SPDX-License-Identifier: Apache-2.0
#include "cli/cell_program.hpp"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <system_error>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.hpp"
#include "campaign/arms.hpp"
#include "cli/output.hpp"
#include "model/hub.hpp"

namespace poros {
namespace fs = std::filesystem;
fs::path cell_program(const std::string& device) {
  const fs::path plain = find_install_paths({}).cell_program;
  return device == "cuda" ? fs::path(plain).concat("-cuda") : plain;
}

std::string resolve_device(const std::string& device) {
  if (device != "auto") return device;
  std::error_code error;
  return has_nvidia_gpu() && fs::exists(cell_program("cuda"), error) ? "cuda" : "cpu";
}

int run_cell_program(const std::string& device, const std::vector<std::string>& arguments) {
  const std::string program = cell_program(device).string();
  std::error_code error;
  if (!fs::exists(program, error)) {
    fail(Fault::environment, "{}: the trainer is missing; scripts/bootstrap.sh builds it{}",
         program, device == "cuda" ? " where there is a CUDA toolkit" : "");
  }
  std::vector<std::string> words = {program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  flush_stdout();
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) fail_errno(Fault::environment, program + " can't be started");
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() == parent) ::execv(program.c_str(), argv.data());
    ::_exit(127);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) fail_errno(Fault::environment, program);
  }
  if (WIFSIGNALED(status)) return 128 + WTERMSIG(status);
  if (WEXITSTATUS(status) == 127) fail(Fault::environment, "{} can't be started", program);
  return WEXITSTATUS(status);
}

fs::path model_from_argument(const std::string& text) {
  std::error_code error;
  if (fs::exists(text, error)) return fs::path(text);
  return resolve_model(text, "main", ".");
}

ScratchFolder::ScratchFolder() {
  std::string name = (fs::temp_directory_path() / "poros-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) fail_errno(Fault::io, name);
  path_ = name;
}

ScratchFolder::~ScratchFolder() {
  std::error_code error;
  fs::remove_all(path_, error);
}

}  // namespace poros
