// SPDX-License-Identifier: Apache-2.0
#include "train/events.hpp"

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "base/error.hpp"

namespace poros {
namespace {

Json finite_or_null(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

}  // namespace

UniqueFd EventPipe::fd_from_environment(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return UniqueFd();
  const std::string_view digits(text);
  int fd = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), fd);
  const bool number = error == std::errc() && end == digits.data() + digits.size() && fd >= 0;
  if (!number || ::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
    fail(Fault::usage, "{}={}: not an open file descriptor", variable, text);
  }
  return UniqueFd(fd);
}

EventPipe::EventPipe(UniqueFd fd, double heartbeat_s)
    : fd_(std::move(fd)), heartbeat_s_(heartbeat_s) {
  if (fd_) heart_ = std::thread([this] { beat(); });
}

EventPipe::~EventPipe() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  if (heart_.joinable()) heart_.join();
}

void EventPipe::phase(std::string_view name) {
  const std::lock_guard lock(mutex_);
  beating_ = name != "warmup" && name != "train";
  send({{"event", "phase"}, {"phase", name}});
}

void EventPipe::step(const StepEvent& event) {
  const std::lock_guard lock(mutex_);
  send({{"event", "step"},
        {"step", event.step},
        {"steps", event.steps},
        {"loss", finite_or_null(event.loss)},
        {"s_per_step", finite_or_null(event.s_per_step)},
        {"memory_mb", finite_or_null(event.memory_mb)}});
}

void EventPipe::send(const Json& event) {
  if (!fd_) return;
  const std::string line = dump_json(event) + "\n";
  if (line.size() > kMaxLine) return;
  // A pipe that polls as writable takes PIPE_BUF (4096) bytes without blocking; the descriptor's
  // own flags are left alone, since it may be shared with another process.
  pollfd ready{fd_.get(), POLLOUT, 0};
  int polled = 0;
  do {
    polled = ::poll(&ready, 1, 0);
  } while (polled < 0 && errno == EINTR);
  if (polled == 0) return;
  ssize_t put = 0;
  do {
    put = ::write(fd_.get(), line.data(), line.size());
  } while (put < 0 && errno == EINTR);
  if (put < 0 && errno != EAGAIN && errno != EWOULDBLOCK) fd_.reset();
}

void EventPipe::beat() {
  std::unique_lock lock(mutex_);
  const std::chrono::duration<double> interval(heartbeat_s_);
  while (!wake_.wait_for(lock, interval, [this] { return ending_; })) {
    if (beating_) send({{"event", "heartbeat"}});
  }
}

}  // namespace poros
