// SPDX-License-Identifier: Apache-2.0
// The event pipe: one line a write, and nothing that a reader does can hold up or end the work.
#include "train/events.hpp"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/clock.hpp"
#include "base/error.hpp"

namespace poros {
namespace {

struct Pipe {
  UniqueFd read_end, write_end;
  Pipe() {
    int ends[2] = {-1, -1};
    if (::pipe2(ends, O_CLOEXEC) != 0) fail_errno(Fault::io, "pipe");
    read_end.reset(ends[0]);
    write_end.reset(ends[1]);
  }
  /// What lies in the pipe now.
  std::string drain() {
    ::fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
    std::string text(std::size_t{1} << 20, '\0');
    const ssize_t got = ::read(read_end.get(), text.data(), text.size());
    text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return text;
  }
};

std::vector<Json> lines_of(const std::string& text) {
  std::vector<Json> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    EXPECT_NE(end, std::string::npos) << "a line without its end";
    if (end == std::string::npos) break;
    lines.push_back(parse_json(text.substr(begin, end - begin), "event"));
    begin = end + 1;
  }
  return lines;
}

TEST(EventPipe, PhasesAndStepsAreOneJsonObjectALine) {
  Pipe pipe;
  {
    EventPipe events(UniqueFd(pipe.write_end.release()));
    events.phase("load");
    events.step({3, 25, 2.5, 0.25, 812.0});
    events.step({4, 25, std::numeric_limits<double>::quiet_NaN(), 0.25, 812.0});
  }
  const std::vector<Json> lines = lines_of(pipe.drain());
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0], Json({{"event", "phase"}, {"phase", "load"}}));
  EXPECT_EQ(lines[1], Json({{"event", "step"},
                            {"step", 3},
                            {"steps", 25},
                            {"loss", 2.5},
                            {"s_per_step", 0.25},
                            {"memory_mb", 812.0}}));
  EXPECT_TRUE(lines[2].at("loss").is_null()) << "not a number is never written as one";
}

TEST(EventPipe, HeartbeatsGoOnInLoadAndCeaseInSteps) {
  Pipe pipe;
  EventPipe events(UniqueFd(pipe.write_end.release()), 0.01);
  events.phase("load");
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  events.phase("train");
  const std::vector<Json> loading = lines_of(pipe.drain());
  ASSERT_GE(loading.size(), 3U);
  EXPECT_EQ(loading[1], Json({{"event", "heartbeat"}}));
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  EXPECT_EQ(pipe.drain(), "") << "silence in a step must be visible as such";
}

TEST(EventPipe, AReaderThatIsGoneIsTolerated) {
  std::signal(SIGPIPE, SIG_IGN);
  Pipe pipe;
  EventPipe events(UniqueFd(pipe.write_end.release()));
  pipe.read_end.reset();
  events.phase("load");
  events.step({1, 2, 1.0, 1.0, 1.0});
}

TEST(EventPipe, AReaderThatDoesNotReadHoldsNothingUp) {
  Pipe pipe;
  EventPipe events(UniqueFd(pipe.write_end.release()));
  const double begin = monotonic_s();
  for (int i = 0; i < 20000; ++i) events.step({i, 20000, 1.0, 1.0, 1.0});
  EXPECT_LT(monotonic_s() - begin, 30.0);
  const std::vector<Json> lines = lines_of(pipe.drain());  // whole lines only
  EXPECT_GT(lines.size(), 100U);
  EXPECT_LT(lines.size(), 20000U);
}

TEST(EventPipe, TheDescriptorComesFromTheEnvironment) {
  const char* name = "POROS_TEST_EVENT_FD";
  ::unsetenv(name);
  EXPECT_FALSE(EventPipe::fd_from_environment(name));
  for (const char* bad : {"999", "-1", "3x", "zero"}) {
    ::setenv(name, bad, 1);
    EXPECT_THROW(EventPipe::fd_from_environment(name), Error) << bad;
  }
  Pipe pipe;
  const int fd = pipe.write_end.release();
  ::fcntl(fd, F_SETFD, 0);
  ::setenv(name, std::to_string(fd).c_str(), 1);
  const UniqueFd taken = EventPipe::fd_from_environment(name);
  EXPECT_EQ(taken.get(), fd);
  EXPECT_EQ(::fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

}  // namespace
}  // namespace poros
