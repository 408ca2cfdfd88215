// SPDX-License-Identifier: Apache-2.0
#include "child.hpp"

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.hpp"

namespace poros {
namespace {

constexpr int kEventFd = 5;  // in the child

[[noreturn]] void exec_child(const std::vector<std::string>& argv, int event_fd, int output_fd,
                             const ChildOptions& options) {
  if (options.address_space_bytes) {
    const rlimit limit{*options.address_space_bytes, *options.address_space_bytes};
    ::setrlimit(RLIMIT_AS, &limit);
  }
  ::signal(SIGPIPE, SIG_DFL);  // the program must look after itself
  ::dup2(output_fd, STDOUT_FILENO);
  ::dup2(output_fd, STDERR_FILENO);
  // By way of another number, since dup2 onto itself would leave the descriptor close-on-exec.
  ::dup2(::fcntl(event_fd, F_DUPFD_CLOEXEC, kEventFd + 1), kEventFd);
  ::setenv("POROS_EVENT_FD", "5", 1);
  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  ::execv(arguments[0], arguments.data());
  ::_exit(127);
}

}  // namespace

Child::Child(const std::vector<std::string>& argv, const ChildOptions& options) {
  int events[2] = {-1, -1};
  if (::pipe2(events, O_CLOEXEC) != 0) fail_errno(Fault::io, "pipe");
  events_.reset(events[0]);
  const UniqueFd event_writer(events[1]);
  std::string name = (std::filesystem::temp_directory_path() / "poros_child.XXXXXX").string();
  output_fd_.reset(::mkostemp(name.data(), O_CLOEXEC));
  if (!output_fd_) fail_errno(Fault::io, name);
  ::unlink(name.c_str());
  pid_ = ::fork();
  if (pid_ < 0) fail_errno(Fault::io, "fork");
  if (pid_ == 0) exec_child(argv, event_writer.get(), output_fd_.get(), options);
  if (options.close_event_reader) events_.reset();
}

Child::~Child() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
}

std::optional<Json> Child::next_event() {
  for (;;) {
    const auto end = pending_.find('\n');
    if (end != std::string::npos) {
      const std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return parse_json(line, "event");
    }
    pollfd ready{events_.get(), POLLIN, 0};
    if (!events_ || ::poll(&ready, 1, 60000) <= 0) return std::nullopt;
    char buffer[4096];
    const ssize_t got = ::read(events_.get(), buffer, sizeof buffer);
    if (got <= 0) return std::nullopt;
    pending_.append(buffer, static_cast<std::size_t>(got));
  }
}

void Child::send_signal(int signal) const {
  ::kill(pid_, signal);
}

int Child::wait() {
  int status = 0;
  if (::waitpid(pid_, &status, 0) != pid_) fail_errno(Fault::run, "waitpid");
  pid_ = -1;
  char buffer[4096];
  off_t offset = 0;
  for (ssize_t got = 0; (got = ::pread(output_fd_.get(), buffer, sizeof buffer, offset)) > 0;
       offset += got) {
    output_.append(buffer, static_cast<std::size_t>(got));
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace poros
