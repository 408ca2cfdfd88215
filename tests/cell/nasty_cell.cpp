// SPDX-License-Identifier: Apache-2.0
// A cell that misbehaves in a named way. All its processes keep the command line, in which the
// test's marker stands, so that the test finds survivors without the product's own means.
//   nasty_cell MARKER MODE [NUMBER]
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

void event(const std::string& line) {
  const char* fd = std::getenv("POROS_EVENT_FD");
  if (fd == nullptr) return;
  const std::string text = line + "\n";
  [[maybe_unused]] const auto put = ::write(std::atoi(fd), text.data(), text.size());
}

[[noreturn]] void sleep_long() {
  while (true) ::sleep(1000);
}

/// Each generation forks the next and exits, so that no process id stays for long.
[[noreturn]] void fork_chain(bool new_session) {
  while (true) {
    const pid_t child = ::fork();
    if (child > 0) ::_exit(0);
    if (child == 0 && new_session) ::setsid();
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 2 ? argv[2] : "";
  const long number = argc > 3 ? std::atol(argv[3]) : 0;
  std::setvbuf(stdout, nullptr, _IONBF, 0);

  if (mode == "exit") return static_cast<int>(number);
  if (mode == "abort") std::abort();
  if (mode == "sleep") sleep_long();
  if (mode == "steps") {  // two steps, then silence
    event(R"({"event":"phase","phase":"load"})");
    event(R"({"event":"phase","phase":"train"})");
    event(R"({"event":"step","step":1,"steps":9,"loss":2.5,"s_per_step":0.1,"memory_mb":10})");
    event("no JSON at all");
    event(R"({"event":"step","step":2,"steps":9,"loss":2.25})");
    sleep_long();
  }
  if (mode == "heartbeats") {  // lives, but gets nowhere
    while (true) {
      event(R"({"event":"heartbeat"})");
      ::usleep(50'000);
    }
  }
  if (mode == "stop_self") {  // hangs in a way that SIGTERM alone does not end
    event(R"({"event":"phase","phase":"train"})");
    ::signal(SIGTERM, SIG_IGN);
    ::raise(SIGSTOP);
    sleep_long();
  }
  if (mode == "ignore_term") {
    ::signal(SIGTERM, SIG_IGN);
    if (::fork() == 0) sleep_long();
    sleep_long();
  }
  if (mode == "exit_on_term") {
    ::signal(SIGTERM, [](int) { ::_exit(9); });
    sleep_long();
  }
  if (mode == "daemon") {  // double fork, own session, holds stdout and the event pipe
    if (::fork() == 0) {
      ::setsid();
      ::signal(SIGTERM, SIG_IGN);
      ::signal(SIGHUP, SIG_IGN);
      if (::fork() != 0) ::_exit(0);
      sleep_long();
    }
    ::wait(nullptr);
    return 0;
  }
  if (mode == "clean_daemon") {  // the same without the environment that it was given
    if (::fork() == 0) {
      ::setsid();
      if (::fork() != 0) ::_exit(0);
      char* const arguments[] = {argv[0], argv[1], const_cast<char*>("sleep"), nullptr};
      char* const nothing[] = {nullptr};
      ::execve(argv[0], arguments, nothing);
      ::_exit(127);
    }
    ::wait(nullptr);
    return 0;
  }
  if (mode == "fork_chain" || mode == "fork_chain_sessions") {
    if (::fork() == 0) fork_chain(mode == "fork_chain_sessions");
    ::usleep(20'000);
    return 0;
  }
  if (mode == "fork_many") {  // starts processes for as long as it is let
    if (::fork() == 0) {
      for (int i = 0; i < 2000; ++i) {
        if (::fork() == 0) sleep_long();
        ::usleep(500);
      }
      sleep_long();
    }
    ::usleep(50'000);
    return 0;
  }
  if (mode == "close_all") {
    for (int fd = 0; fd < 64; ++fd) ::close(fd);
    ::usleep(static_cast<useconds_t>(number) * 1000);
    return 0;
  }
  if (mode == "noise") {
    const std::string line(999, 'x');
    for (long i = 0; i < number; i += 1000) std::printf("%s\n", line.c_str());
    std::printf("the end\n");
    return 0;
  }
  if (mode == "binary") {
    std::fputs("before \xff\xfe\x00\x80 after\n", stdout);
    return 0;
  }
  if (mode == "say") {  // prints a variable's value, in two parts
    const char* value = std::getenv("NASTY_API_KEY");
    const std::string text = value == nullptr ? "" : value;
    std::printf("the key is %s", text.substr(0, text.size() / 2).c_str());
    ::usleep(100'000);
    std::printf("%s.\n", text.substr(text.size() / 2).c_str());
    return 0;
  }
  if (mode == "environment") {
    for (char** entry = environ; *entry != nullptr; ++entry) std::printf("%s\n", *entry);
    return 0;
  }
  if (mode == "descriptors") {
    for (int fd = 0; fd < 1024; ++fd) {
      if (::fcntl(fd, F_GETFD) >= 0) std::printf("fd %d\n", fd);
    }
    return 0;
  }
  if (mode == "hog") {  // takes memory until somebody objects
    const std::size_t chunk = std::size_t{16} << 20;
    for (long taken = 0; taken < number; taken += 16) {
      void* memory =
          ::mmap(nullptr, chunk, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory == MAP_FAILED) return 5;
      std::memset(memory, 1, chunk);
    }
    return 0;
  }
  std::fprintf(stderr, "unknown mode %s\n", mode.c_str());
  return 99;
}
