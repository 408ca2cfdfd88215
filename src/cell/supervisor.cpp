// SPDX-License-Identifier: Apache-2.0
#include "cell/supervisor.hpp"

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <optional>
#include <string>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.hpp"
#include "base/files.hpp"
#include "base/json.hpp"
#include "cell/processes.hpp"
#include "cell/protocol.hpp"

namespace poros {
namespace {

constexpr int kControlFd = 3, kReportFd = 4, kEventFd = 5, kFirstOtherFd = 6;
constexpr double kCleanUpDeadline_s = 4.5;  // within the 5 s that the product promises

/// One line to the driver. A driver that is gone is no error here: the control pipe tells.
void report(const Json& line) {
  const std::string text = dump_json(line) + "\n";
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t put = ::write(kReportFd, text.data() + done, text.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return;
    done += static_cast<std::size_t>(put);
  }
}

/// In the forked child. Only calls that are safe after fork; never returns.
[[noreturn]] void become_cell(pid_t supervisor, int failure_fd, char** argv) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != supervisor) ::_exit(127);  // it died before the signal was armed
  const rlimit no_core{0, 0};                   // a core file would hold the environment's secrets
  ::setrlimit(RLIMIT_CORE, &no_core);
  for (int number = 1; number < NSIG; ++number) {
    if (number != SIGUSR1) ::signal(number, SIG_DFL);  // ignored, see supervisor_main()
  }
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::dup2(kEventFd, 3);  // 3 is the only descriptor beside 0, 1, 2 that a cell gets
  ::dup3(failure_fd, 4, O_CLOEXEC);
  ::close_range(5, ~0U, 0);
  ::execvp(argv[0], argv);
  const int number = errno;
  [[maybe_unused]] const ssize_t put = ::write(4, &number, sizeof number);
  ::_exit(127);
}

/// Starts the cell. @returns its pid, or -1 after having reported why not.
pid_t start_cell(char** argv) {
  std::array<int, 2> failure{};
  if (::pipe2(failure.data(), O_CLOEXEC) != 0) {
    report({{"failed", std::string("pipe: ") + std::strerror(errno)}});
    return -1;
  }
  UniqueFd failure_read(failure[0]), failure_write(failure[1]);
  ::setenv(kEventFdVariable, "3", 1);
  const pid_t self = ::getpid();
  const pid_t child = ::fork();  // this program has one thread
  if (child == 0) become_cell(self, failure_write.get(), argv);
  if (child < 0) {
    report({{"failed", std::string("fork: ") + std::strerror(errno)}});
    return -1;
  }
  ::setpgid(child, child);  // both sides do it: whoever comes first
  failure_write.reset();
  int number = 0;
  ssize_t got = 0;
  do {
    got = ::read(failure_read.get(), &number, sizeof number);
  } while (got < 0 && errno == EINTR);
  if (got == sizeof number) {
    ::waitpid(child, nullptr, 0);
    report({{"failed", std::string(argv[0]) + ": " + std::strerror(number)}});
    return -1;
  }
  report({{"pid", child}});
  return child;
}

/// Reaps what has ended. @returns true while the supervisor has any child.
bool reap(pid_t cell, std::optional<int>& cell_status) {
  while (true) {
    int status = 0;
    const pid_t ended = ::waitpid(-1, &status, WNOHANG);
    if (ended == cell) cell_status = status;
    if (ended > 0) continue;
    if (ended == 0) return true;
    if (errno != EINTR) return false;  // ECHILD
  }
}

/// Kills and reaps until no descendant is left or the deadline has passed.
/// @returns how many are left
int kill_all(pid_t cell, std::optional<int>& cell_status) {
  const double deadline = monotonic_s() + kCleanUpDeadline_s;
  while (reap(cell, cell_status)) {
    const std::vector<ProcessInfo> left = descendants(::getpid());
    if (monotonic_s() > deadline) return static_cast<int>(left.size());
    kill_processes(left, ::getpgrp());
    // Short: a program that forks without end is caught by being faster than it.
    const timespec pause{0, 200'000};
    ::nanosleep(&pause, nullptr);
  }
  return 0;
}

int supervise(pid_t cell, double grace_s, int signals) {
  std::optional<int> cell_status;
  std::optional<double> kill_at;  // monotonic time of the SIGKILL after a SIGTERM
  bool kill_now = false;
  const auto terminate = [&] {
    if (kill_at) return;
    kill_at = monotonic_s() + grace_s;
    ::kill(-cell, SIGTERM);
    ::kill(-cell, SIGCONT);  // a stopped process could not act on the SIGTERM
  };
  while (!kill_now && reap(cell, cell_status) && !cell_status) {
    int wait_ms = -1;
    if (kill_at) {
      const double left_s = *kill_at - monotonic_s();
      if (left_s <= 0) break;
      wait_ms = static_cast<int>(left_s * 1000) + 1;
    }
    std::array<pollfd, 2> fds{pollfd{signals, POLLIN, 0}, pollfd{kControlFd, POLLIN, 0}};
    if (::poll(fds.data(), fds.size(), wait_ms) < 0 && errno != EINTR) break;
    if ((fds[0].revents & POLLIN) != 0) {
      signalfd_siginfo info{};
      if (::read(signals, &info, sizeof info) == sizeof info && info.ssi_signo != SIGCHLD) {
        terminate();
      }
    }
    if (fds[1].revents != 0) {
      char command = 0;
      const ssize_t got = ::read(kControlFd, &command, 1);
      const bool launcher_gone = got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN);
      if (got == 1 && command == kControlTerminate) terminate();
      kill_now = launcher_gone || (got == 1 && command == kControlKill);
    }
  }
  const int survivors = kill_all(cell, cell_status);
  if (cell_status && WIFEXITED(*cell_status)) {
    report({{"exit", WEXITSTATUS(*cell_status)}});
  } else if (cell_status) {
    report({{"signal", WTERMSIG(*cell_status)}, {"core", WCOREDUMP(*cell_status) != 0}});
  }
  report({{"survivors", survivors}});
  return survivors == 0 ? 0 : 1;
}

}  // namespace

bool is_supervisor_command(int argc, char** argv) {
  return argc > 1 && std::strcmp(argv[1], kSuperviseCommand) == 0;
}

int supervisor_main(int argc, char** argv) {
  if (argc < 5) return kWrongInput;
  const auto launcher = static_cast<pid_t>(std::strtol(argv[2], nullptr, 10));
  const double grace_s = static_cast<double>(std::strtol(argv[3], nullptr, 10)) / 1000.0;

  // A session of its own, normally made at spawn already: Ctrl-C reaches the driver alone.
  if (::getsid(0) != ::getpid()) ::setsid();
  ::close_range(kFirstOtherFd, ~0U, 0);
  for (const int fd : {kControlFd, kReportFd, kEventFd}) ::fcntl(fd, F_SETFD, FD_CLOEXEC);

  // Slurm's warning (SIGUSR1) goes to every process of a job step; it is for the driver, which
  // alone decides what becomes of the cell.
  ::signal(SIGUSR1, SIG_IGN);
  sigset_t handled;
  sigemptyset(&handled);
  for (const int number : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) sigaddset(&handled, number);
  ::sigprocmask(SIG_SETMASK, &handled, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  const UniqueFd signals(::signalfd(-1, &handled, SFD_CLOEXEC));
  if (!signals || ::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    report({{"failed", std::string("supervisor: ") + std::strerror(errno)}});
    return kFailed;
  }
  // The control pipe's end is what counts; the signal only helps where the pipe can't be read.
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != launcher) return kFailed;

  const pid_t cell = start_cell(argv + 4);
  if (cell < 0) return kFailed;
  // Only the cell and what it starts keep the log and the event pipe open, so that their end means
  // that all of them are gone.
  ::close(kEventFd);
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (null) {
    ::dup2(null.get(), 1);
    ::dup2(null.get(), 2);
  }
  return supervise(cell, grace_s, signals.get());
}

}  // namespace poros
