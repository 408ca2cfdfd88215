// SPDX-License-Identifier: Apache-2.0
#include "cell/cell_process.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.hpp"
#include "base/files.hpp"
#include "base/json.hpp"
#include "cell/capped_log.hpp"
#include "cell/processes.hpp"
#include "cell/protocol.hpp"
#include "cell/supervisor.hpp"

namespace poros {
namespace {

constexpr double kTick_s = 0.2;
constexpr double kDrain_s = 1.0;            // pipes after the cell's end
constexpr double kReapOrphans_s = 2.0;      // killed processes on their way out
constexpr double kSupervisorSlack_s = 8.0;  // beyond grace, its own deadline is 4.5 s
constexpr int kFirstHighFd = 64;            // above the numbers that the child's dup2 calls use

struct Pipe {
  UniqueFd read, write;
  Pipe() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail_errno(Fault::environment, "pipe");
    const UniqueFd low_read(ends[0]), low_write(ends[1]);
    read.reset(::fcntl(low_read.get(), F_DUPFD_CLOEXEC, kFirstHighFd));
    write.reset(::fcntl(low_write.get(), F_DUPFD_CLOEXEC, kFirstHighFd));
    if (!read || !write) fail_errno(Fault::environment, "pipe");
  }
};

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

/// One running cell. All waiting is in run().
class RunningCell {
 public:
  RunningCell(const CellCommand& command, const CellHooks& hooks, const Redactor& redactor)
      : command_(command),
        hooks_(hooks),
        log_(command.log_path, command.log_limit_bytes, redactor) {}

  CellOutcome run(const OomCounter& oom);

 private:
  void spawn_supervisor();
  void wait_for_end();
  void watch_deadlines(double now_s);
  void watch_supervisor(double now_s);
  void read_log();
  void read_events();
  void read_reports();
  void read_report(const Json& line);
  void drain();
  void reap_orphans();
  void send(char order);

  const CellCommand& command_;
  const CellHooks& hooks_;
  CappedLog log_;
  EventReader events_;
  std::optional<Watchdog> watchdog_;
  Pipe control_, report_, event_pipe_, output_;
  pid_t supervisor_ = -1;
  bool supervisor_reaped_ = false, told_survivors_ = false, told_end_ = false;
  std::optional<double> give_up_at_;  // monotonic time after which the supervisor counts as hung
  std::string report_text_;
  CellOutcome outcome_;
};

void RunningCell::spawn_supervisor() {
  std::vector<std::string> argv{"poros", kSuperviseCommand, std::to_string(::getpid()),
                                std::to_string(static_cast<long>(command_.grace_s * 1000))};
  argv.insert(argv.end(), command_.argv.begin(), command_.argv.end());
  std::vector<std::string> environment;
  for (const auto& [name, value] : command_.environment) environment.push_back(name + "=" + value);
  environment.push_back(std::string(kCellTagVariable) + "=" + command_.tag);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, output_.write.get(), 1);
  posix_spawn_file_actions_adddup2(&actions, output_.write.get(), 2);
  posix_spawn_file_actions_adddup2(&actions, control_.read.get(), 3);
  posix_spawn_file_actions_adddup2(&actions, report_.write.get(), 4);
  posix_spawn_file_actions_adddup2(&actions, event_pipe_.write.get(), 5);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t held, all;
  sigemptyset(&held);
  sigaddset(&held, SIGUSR1);  // until the supervisor ignores it
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &held);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const int error = ::posix_spawn(&supervisor_, command_.supervisor_program.c_str(), &actions,
                                  &attributes, pointers(argv).data(), pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    fail(Fault::environment, "{}: can't start the supervisor: {}",
         command_.supervisor_program.string(), std::strerror(error));
  }
  control_.read.reset();
  report_.write.reset();
  event_pipe_.write.reset();
  output_.write.reset();
  for (const UniqueFd* end : {&report_.read, &event_pipe_.read, &output_.read}) {
    ::fcntl(end->get(), F_SETFL, O_NONBLOCK);
  }
}

void RunningCell::send(char order) {
  [[maybe_unused]] const ssize_t put = ::write(control_.write.get(), &order, 1);
  const double patience_s =
      (order == kControlTerminate ? command_.grace_s : 0) + kSupervisorSlack_s;
  if (!give_up_at_) give_up_at_ = monotonic_s() + patience_s;
}

void RunningCell::read_report(const Json& line) {
  if (line.contains("failed")) {
    outcome_.end = CellOutcome::End::start_failed;
    outcome_.detail = line.at("failed").get<std::string>();
    told_end_ = told_survivors_ = true;
  } else if (line.contains("exit") || line.contains("signal")) {
    const bool exited = line.contains("exit");
    outcome_.end = exited ? CellOutcome::End::exited : CellOutcome::End::signalled;
    outcome_.code = line.at(exited ? "exit" : "signal").get<int>();
    told_end_ = true;
  } else if (line.contains("survivors")) {
    outcome_.survivors = line.at("survivors").get<int>();
    told_survivors_ = true;
  }
}

/// Appends what can be read now. Closes the descriptor at its end.
template <typename Sink>
void read_available(UniqueFd& fd, const Sink& sink) {
  std::array<char, 65536> buffer{};
  // A bounded number of rounds: a cell that writes without end must not keep the deadlines waiting.
  for (int round = 0; fd && round < 16; ++round) {
    const ssize_t got = ::read(fd.get(), buffer.data(), buffer.size());
    if (got > 0) {
      sink(std::string_view(buffer.data(), static_cast<std::size_t>(got)));
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      fd.reset();
    } else {
      return;
    }
  }
}

void RunningCell::read_reports() {
  read_available(report_.read, [&](std::string_view bytes) { report_text_.append(bytes); });
  for (auto end = report_text_.find('\n'); end != std::string::npos;
       end = report_text_.find('\n')) {
    read_report(parse_json(report_text_.substr(0, end), "supervisor"));
    report_text_.erase(0, end + 1);
  }
}

void RunningCell::read_log() {
  read_available(output_.read, [&](std::string_view bytes) { log_.append(bytes); });
}

void RunningCell::read_events() {
  read_available(event_pipe_.read, [&](std::string_view bytes) {
    events_.feed(bytes, [&](CellEvent event, const CellProgress& progress) {
      watchdog_->observe(event, progress, monotonic_s());
      if (hooks_.on_event) hooks_.on_event(event, progress);
    });
  });
}

void RunningCell::watch_deadlines(double now_s) {
  if (give_up_at_) return;  // already being ended
  if (hooks_.stop_requested && hooks_.stop_requested()) {
    outcome_.stopped = true;
    send(kControlTerminate);
    return;
  }
  outcome_.deadline = watchdog_->expired(now_s);
  if (!outcome_.deadline.empty()) send(kControlTerminate);
}

void RunningCell::watch_supervisor(double now_s) {
  int status = 0;
  const pid_t changed = ::waitpid(supervisor_, &status, WNOHANG | WUNTRACED);
  if (changed == supervisor_ && WIFSTOPPED(status)) {
    ::kill(supervisor_, SIGCONT);  // a supervisor that sleeps guards nothing
  } else if (changed == supervisor_) {
    supervisor_reaped_ = true;
    if (!told_survivors_) read_reports();  // what it said last
    if (!told_end_) outcome_.detail = "the supervisor was killed";
  }
  if (give_up_at_ && now_s > *give_up_at_ && !supervisor_reaped_) {
    outcome_.detail = "the supervisor did not answer";
    ::kill(supervisor_, SIGKILL);
  }
}

void RunningCell::wait_for_end() {
  while (!told_survivors_ && !supervisor_reaped_) {
    const double now_s = monotonic_s();
    watch_deadlines(now_s);
    watch_supervisor(now_s);
    if (supervisor_reaped_) break;
    std::array<pollfd, 4> fds{
        pollfd{report_.read.get(), POLLIN, 0}, pollfd{event_pipe_.read.get(), POLLIN, 0},
        pollfd{output_.read.get(), POLLIN, 0}, pollfd{hooks_.wake_fd, POLLIN, 0}};
    if (give_up_at_) fds[3].fd = -1;  // already told; the descriptor stays readable
    const double wait_s = std::clamp(watchdog_->next_deadline() - now_s, 0.0, kTick_s);
    ::poll(fds.data(), fds.size(), static_cast<int>(wait_s * 1000) + 1);
    read_events();
    read_log();
    read_reports();
    if (hooks_.on_tick) hooks_.on_tick();
  }
}

void RunningCell::drain() {
  const double deadline = monotonic_s() + kDrain_s;
  while ((event_pipe_.read || output_.read) && monotonic_s() < deadline) {
    std::array<pollfd, 2> fds{pollfd{event_pipe_.read.get(), POLLIN, 0},
                              pollfd{output_.read.get(), POLLIN, 0}};
    ::poll(fds.data(), fds.size(), 50);
    read_events();
    read_log();
  }
  log_.finish();
}

/// Reaps what a killed supervisor left to this process (become_subreaper).
void RunningCell::reap_orphans() {
  // A killed process gives up its memory, and with it the tag that kill_tagged() looks for, a
  // moment before it can be reaped: where none may be left, that moment is waited for.
  const bool all_killed =
      outcome_.end == CellOutcome::End::lost && !told_survivors_ && outcome_.survivors == 0;
  const double deadline = monotonic_s() + (all_killed ? kReapOrphans_s : 0.0);
  while (true) {
    const pid_t ended = ::waitpid(-1, nullptr, WNOHANG);
    if (ended > 0 || (ended < 0 && errno == EINTR)) continue;
    if (ended < 0 || monotonic_s() >= deadline) return;
    ::poll(nullptr, 0, 1);
  }
}

CellOutcome RunningCell::run(const OomCounter& oom) {
  const std::uint64_t oom_before = oom.read();
  const double start_s = monotonic_s();
  outcome_.started_at = utc_now();
  watchdog_.emplace(command_.timeouts, start_s);
  spawn_supervisor();
  wait_for_end();
  control_.write.reset();  // the supervisor, if it still is there, ends everything
  if (!supervisor_reaped_) {
    ::kill(supervisor_, SIGKILL);  // it has said its last word
    while (::waitpid(supervisor_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  if (!told_survivors_) {
    outcome_.end = CellOutcome::End::lost;
    outcome_.survivors = kill_tagged(kCellTagVariable, command_.tag, 5.0);
  }
  drain();
  reap_orphans();
  // The victim can be the cell itself or a process it needed: then it ends with an exit code.
  const bool killed = outcome_.end == CellOutcome::End::signalled && outcome_.code == SIGKILL;
  const bool failed = outcome_.end == CellOutcome::End::exited && outcome_.code != 0;
  outcome_.oom_killed = (killed || failed) && !give_up_at_ && oom.read() > oom_before;
  outcome_.wall_s = monotonic_s() - start_s;
  outcome_.finished_at = utc_now();
  outcome_.last = events_.progress();
  outcome_.events = events_.events();
  outcome_.malformed_events = events_.malformed();
  outcome_.log_bytes = log_.bytes_seen();
  outcome_.log_tail = log_.last_text();
  outcome_.log_error = log_.error();
  return outcome_;
}

bool begins_with(const std::string& text, std::string_view prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

}  // namespace

std::map<std::string, std::string> cell_environment(std::map<std::string, std::string> base,
                                                    const std::string& device) {
  static constexpr std::array<std::string_view, 9> kLauncherVariables{
      "OMPI_", "PMIX_", "PMI_", "PMI2_", "PRTE_", "ORTE_", "SLURM_STEP", "SRUN", "SLURM_SRUN"};
  for (auto entry = base.begin(); entry != base.end();) {
    const bool drop =
        entry->first == kCellTagVariable || entry->first == kEventFdVariable ||
        std::any_of(kLauncherVariables.begin(), kLauncherVariables.end(),
                    [&](std::string_view prefix) { return begins_with(entry->first, prefix); });
    entry = drop ? base.erase(entry) : std::next(entry);
  }
  if (device == "cpu") {
    base["CUDA_VISIBLE_DEVICES"] = "";
    // Threads that wait for work by spinning take the cores from whatever runs beside them. On two
    // shared cores the demo's step took 0.19 s this way and 0.43 to 0.98 s with spinning.
    base.emplace("OMP_WAIT_POLICY", "PASSIVE");
  } else {
    base["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID";
  }
  return base;
}

CellOutcome run_cell(const CellCommand& command, const CellHooks& hooks, const Redactor& redactor,
                     const OomCounter& oom) {
  ::signal(SIGPIPE, SIG_IGN);
  return RunningCell(command, hooks, redactor).run(oom);
}

void become_subreaper() {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

}  // namespace poros
