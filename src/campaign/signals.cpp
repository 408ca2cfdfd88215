// SPDX-License-Identifier: Apache-2.0
#include "campaign/signals.hpp"

#include <array>
#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

#include "base/error.hpp"

namespace poros {
namespace {

volatile std::sig_atomic_t g_stop_signal = 0;
volatile std::sig_atomic_t g_stop_fd = -1;

extern "C" void on_stop_signal(int number) {
  const int saved = errno;
  if (g_stop_signal == 0) g_stop_signal = number;
  const char byte = 0;
  [[maybe_unused]] const ssize_t put = ::write(g_stop_fd, &byte, 1);
  errno = saved;
}

}  // namespace

StopSignals::StopSignals() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) fail_errno(Fault::environment, "pipe");
  read_.reset(ends[0]);
  write_.reset(ends[1]);
  g_stop_signal = 0;
  g_stop_fd = write_.get();
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  for (int i = 0; i < 4; ++i) {
    ::sigaction(kSignals[i], nullptr, &old_[i]);
    // What nohup or a shell's background job ignores stays ignored.
    if (old_[i].sa_handler != SIG_IGN) ::sigaction(kSignals[i], &action, nullptr);
  }
}

StopSignals::~StopSignals() {
  for (int i = 0; i < 4; ++i) ::sigaction(kSignals[i], &old_[i], nullptr);
  g_stop_fd = -1;
}

bool StopSignals::requested() const {
  return g_stop_signal != 0;
}

const char* StopSignals::name() const {
  switch (g_stop_signal) {
    case SIGINT:
      return "SIGINT";
    case SIGTERM:
      return "SIGTERM";
    case SIGHUP:
      return "SIGHUP";
    case SIGUSR1:
      return "SIGUSR1";
    default:
      return "no signal";
  }
}

}  // namespace poros
