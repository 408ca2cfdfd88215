// SPDX-License-Identifier: Apache-2.0
// Promises of a cell's end: whatever a cell does and whoever is killed, nothing of it is left.
#include "cell/supervisor.hpp"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <thread>

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.hpp"
#include "base/files.hpp"
#include "cell/cell_process.hpp"
#include "cell/processes.hpp"
#include "cell/protocol.hpp"

namespace fs = std::filesystem;
using poros::CellCommand;
using poros::CellOutcome;
using End = poros::CellOutcome::End;

namespace {

std::string file_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Processes with the marker in their command line (zombies have none).
std::set<pid_t> marked(const std::string& marker) {
  std::set<pid_t> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (std::stoi(name) == ::getpid()) continue;
    if (file_text(entry.path() / "cmdline").find(marker) != std::string::npos) {
      found.insert(std::stoi(name));
    }
  }
  return found;
}

template <typename Condition>
bool within(double seconds, const Condition& condition) {
  const double deadline = poros::monotonic_s() + seconds;
  while (!condition()) {
    if (poros::monotonic_s() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

int open_descriptors() {
  int count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

int children() {
  const pid_t self = ::getpid();
  int count = 0;
  for (const poros::ProcessInfo& info : poros::list_processes()) count += info.parent == self;
  return count;
}

CellCommand nasty(const fs::path& folder, const std::string& marker, const std::string& mode,
                  const std::string& number = "0") {
  CellCommand command;
  command.argv = {NASTY_CELL, marker, mode, number};
  command.environment = poros::cell_environment(poros::current_environment(), "cpu");
  command.tag = "test/" + marker;
  command.log_path = folder / "log.txt";
  command.timeouts = {.load_s = 60, .step_s = 60, .cell_s = 60};
  command.grace_s = 0.3;
  return command;
}

class Supervisor : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "poros-cell.XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    marker_ = "marker-" + folder_.filename().string();
  }
  void TearDown() override {
    for (const pid_t pid : marked(marker_)) ::kill(pid, SIGKILL);
    fs::remove_all(folder_);
  }

  CellOutcome run(const CellCommand& command, const poros::CellHooks& hooks = {},
                  const poros::Redactor& redactor = {}) {
    return poros::run_cell(command, hooks, redactor, poros::OomCounter(std::vector<fs::path>()));
  }
  CellOutcome run(const std::string& mode, const std::string& number = "0") {
    return run(nasty(folder_, marker_, mode, number));
  }
  std::string log() const { return file_text(folder_ / "log.txt"); }

  fs::path folder_;
  std::string marker_;
};

TEST_F(Supervisor, ReportsHowACellEnded) {
  const CellOutcome zero = run("exit", "0");
  EXPECT_EQ(zero.end, End::exited);
  EXPECT_EQ(zero.code, 0);
  EXPECT_EQ(zero.survivors, 0);
  EXPECT_FALSE(zero.oom_killed);
  const CellOutcome seven = run("exit", "7");
  EXPECT_EQ(seven.end, End::exited);
  EXPECT_EQ(seven.code, 7);
  const CellOutcome aborted = run("abort");
  EXPECT_EQ(aborted.end, End::signalled);
  EXPECT_EQ(aborted.code, SIGABRT);
}

TEST_F(Supervisor, SaysWhyAProgramCannotBeStarted) {
  CellCommand command = nasty(folder_, marker_, "exit");
  command.argv[0] = "/nowhere/poros-cell";
  const CellOutcome outcome = run(command);
  EXPECT_EQ(outcome.end, End::start_failed);
  EXPECT_NE(outcome.detail.find("/nowhere/poros-cell: No such file"), std::string::npos)
      << outcome.detail;
}

TEST_F(Supervisor, NothingSurvivesACellThatEnds) {
  for (const char* mode :
       {"daemon", "clean_daemon", "fork_chain", "fork_chain_sessions", "fork_many"}) {
    const double start = poros::monotonic_s();
    const CellOutcome outcome = run(mode);
    EXPECT_EQ(outcome.end, End::exited) << mode;
    EXPECT_EQ(outcome.code, 0) << mode;
    EXPECT_EQ(outcome.survivors, 0) << mode;
    EXPECT_TRUE(marked(marker_).empty()) << mode;
    EXPECT_LT(poros::monotonic_s() - start, 5.0) << mode;
  }
}

TEST_F(Supervisor, StepDeadlineEndsAHangAndNamesTheLastStep) {
  CellCommand command = nasty(folder_, marker_, "steps");
  command.timeouts.step_s = 0.5;
  const CellOutcome outcome = run(command);
  EXPECT_EQ(outcome.deadline, "step");
  EXPECT_EQ(outcome.end, End::signalled);
  EXPECT_EQ(outcome.code, SIGTERM);
  EXPECT_EQ(outcome.last.step, 2);
  EXPECT_EQ(outcome.last.steps, 9);
  EXPECT_EQ(outcome.last.phase, "train");
  ASSERT_TRUE(outcome.last.loss.has_value());
  EXPECT_DOUBLE_EQ(*outcome.last.loss, 2.25);
  EXPECT_EQ(outcome.malformed_events, 1);
  EXPECT_GE(outcome.wall_s, 0.5);
  EXPECT_LT(outcome.wall_s, 3.0);
}

TEST_F(Supervisor, HeartbeatsDoNotMoveTheLoadDeadline) {
  CellCommand command = nasty(folder_, marker_, "heartbeats");
  command.timeouts.load_s = 0.4;
  EXPECT_EQ(run(command).deadline, "load");
}

TEST_F(Supervisor, CellDeadlineEndsItAll) {
  CellCommand command = nasty(folder_, marker_, "sleep");
  command.timeouts.cell_s = 0.3;
  EXPECT_EQ(run(command).deadline, "cell");
}

TEST_F(Supervisor, StoppedAndDeafCellsAreKilledAfterTheGrace) {
  for (const char* mode : {"stop_self", "ignore_term"}) {
    CellCommand command = nasty(folder_, marker_, mode);
    command.timeouts = {.load_s = 0.3, .step_s = 0.3, .cell_s = 60};
    const CellOutcome outcome = run(command);
    EXPECT_FALSE(outcome.deadline.empty()) << mode;
    EXPECT_EQ(outcome.code, SIGKILL) << mode;
    EXPECT_EQ(outcome.survivors, 0) << mode;
    EXPECT_TRUE(marked(marker_).empty()) << mode;
  }
}

TEST_F(Supervisor, StopRequestTerminatesWithGrace) {
  poros::CellHooks hooks;
  const double start = poros::monotonic_s();
  hooks.stop_requested = [&] { return poros::monotonic_s() - start > 0.3; };
  const CellOutcome outcome = run(nasty(folder_, marker_, "exit_on_term"), hooks);
  EXPECT_TRUE(outcome.stopped);
  EXPECT_TRUE(outcome.deadline.empty());
  EXPECT_EQ(outcome.end, End::exited);
  EXPECT_EQ(outcome.code, 9);
}

TEST_F(Supervisor, ACellMayCloseItsPipesAndGoOn) {
  const CellOutcome outcome = run("close_all", "700");
  EXPECT_EQ(outcome.end, End::exited);
  EXPECT_EQ(outcome.code, 0);
  EXPECT_GE(outcome.wall_s, 0.7);
}

TEST_F(Supervisor, LogKeepsHeadAndTailOfALongOutput) {
  CellCommand command = nasty(folder_, marker_, "noise", "20000000");
  command.log_limit_bytes = 100'000;
  const CellOutcome outcome = run(command);
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.log_bytes, 20'000'008U);
  const std::string text = log();
  EXPECT_GT(text.size(), 100'000U);
  EXPECT_LT(text.size(), 100'100U);
  EXPECT_NE(text.find("[... 19900008 bytes left out ...]"), std::string::npos);
  EXPECT_EQ(text.substr(text.size() - 8), "the end\n");
  EXPECT_EQ(outcome.log_tail.substr(outcome.log_tail.size() - 8), "the end\n");
}

TEST_F(Supervisor, OutputNeedNotBeText) {
  EXPECT_EQ(run("binary").code, 0);
  EXPECT_EQ(log().substr(0, 9), "before \xff\xfe");
}

TEST_F(Supervisor, SecretsAreRedactedInTheLogAlsoWhenTheyComeInPieces) {
  CellCommand command = nasty(folder_, marker_, "say");
  command.environment["NASTY_API_KEY"] = "canary-0123456789abcdef";
  const CellOutcome control = run(command);
  EXPECT_EQ(log(), "the key is canary-0123456789abcdef.\n");  // found where nothing is redacted
  const CellOutcome outcome = run(command, {}, poros::Redactor(command.environment));
  EXPECT_EQ(log(), "the key is [redacted:NASTY_API_KEY].\n");
  EXPECT_EQ(outcome.log_tail, "the key is [redacted:NASTY_API_KEY].\n");
}

TEST_F(Supervisor, CellSeesNoLauncherVariablesNoGpuAndNoForeignDescriptors) {
  CellCommand command = nasty(folder_, marker_, "environment");
  std::map<std::string, std::string> base = poros::current_environment();
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_FD", "PRTE_X", "ORTE_X",
                           "SLURM_STEP_ID", "SLURM_STEPID", "SRUN_DEBUG", "SLURM_SRUN_COMM_PORT"}) {
    base[name] = "1";
  }
  base["SLURM_JOB_ID"] = "77";
  base["CUDA_VISIBLE_DEVICES"] = "0";
  base.erase("OMP_WAIT_POLICY");
  command.environment = poros::cell_environment(base, "cpu");
  EXPECT_EQ(run(command).code, 0);
  const std::string seen = "\n" + log();
  for (const char* name : {"OMPI_", "PMIX_", "PMI_", "PRTE_", "ORTE_", "SLURM_STEP", "SRUN"}) {
    EXPECT_EQ(seen.find(std::string("\n") + name), std::string::npos) << name;
  }
  EXPECT_NE(seen.find("\nSLURM_JOB_ID=77\n"), std::string::npos);
  EXPECT_NE(seen.find("\nCUDA_VISIBLE_DEVICES=\n"), std::string::npos);
  EXPECT_NE(seen.find("\nOMP_WAIT_POLICY=PASSIVE\n"), std::string::npos);
  EXPECT_NE(seen.find("\nPOROS_EVENT_FD=3\n"), std::string::npos);
  EXPECT_NE(seen.find("\nPOROS_CELL_TAG=test/" + marker_ + "\n"), std::string::npos);

  // An inheritable descriptor of the driver, as a library might leave it.
  const poros::UniqueFd leak(::open("/dev/null", O_RDONLY));
  ASSERT_TRUE(leak);
  EXPECT_EQ(run("descriptors").code, 0);
  EXPECT_EQ(log(), "fd 0\nfd 1\nfd 2\nfd 3\n");
}

TEST_F(Supervisor, ManyCellsLeaveNoDescriptorNoZombieAndLittleTime) {
  static_cast<void>(run("exit"));
  const int descriptors_before = open_descriptors(), children_before = children();
  const double start = poros::monotonic_s();
  constexpr int kCells = 300;
  for (int i = 0; i < kCells; ++i) ASSERT_EQ(run("exit").code, 0);
  const double ms_per_cell = (poros::monotonic_s() - start) * 1000 / kCells;
  EXPECT_EQ(open_descriptors(), descriptors_before);
  EXPECT_EQ(children(), children_before);
  RecordProperty("ms_per_cell", std::to_string(ms_per_cell));
  std::printf("%.2f ms a no-op cell\n", ms_per_cell);
}

TEST_F(Supervisor, KillingTheDriverKillsEverything) {
  for (const char* mode : {"sleep", "daemon", "ignore_term", "fork_chain_sessions"}) {
    const pid_t launcher = ::fork();
    ASSERT_GE(launcher, 0);
    if (launcher == 0) {  // becomes a driver: this program again, see main()
      ::execl("/proc/self/exe", "launch", "__launch", folder_.c_str(), marker_.c_str(), mode,
              nullptr);
      ::_exit(127);
    }
    ASSERT_TRUE(within(5, [&] { return marked(marker_).size() >= 3; })) << mode;
    ::kill(launcher, SIGKILL);
    ::waitpid(launcher, nullptr, 0);
    EXPECT_TRUE(within(5, [&] { return marked(marker_).empty(); })) << mode;
  }
}

TEST_F(Supervisor, AKilledSupervisorIsLostAndItsCellIsCleanedUp) {
  poros::become_subreaper();
  for (const char* mode : {"sleep", "ignore_term"}) {
    poros::CellHooks hooks;
    bool killed = false;
    hooks.on_tick = [&] {
      const std::set<pid_t> alive = marked(marker_);
      if (killed || alive.size() < 2) return;
      for (const poros::ProcessInfo& info : poros::list_processes()) {
        if (info.parent == ::getpid() && alive.count(info.pid) != 0) {
          killed = ::kill(info.pid, SIGKILL) == 0;
        }
      }
    };
    const CellOutcome outcome = run(nasty(folder_, marker_, mode), hooks);
    EXPECT_TRUE(killed) << mode;
    EXPECT_EQ(outcome.end, End::lost) << mode;
    EXPECT_EQ(outcome.survivors, 0) << mode;
    EXPECT_TRUE(marked(marker_).empty()) << mode;
    EXPECT_EQ(children(), 0) << mode;
  }
}

TEST_F(Supervisor, AStoppedSupervisorIsWokenUp) {
  poros::CellHooks hooks;
  bool stopped = false;
  hooks.on_tick = [&] {
    if (stopped) return;
    for (const poros::ProcessInfo& info : poros::list_processes()) {
      if (info.parent == ::getpid()) stopped = ::kill(info.pid, SIGSTOP) == 0;
    }
  };
  const CellOutcome outcome = run(nasty(folder_, marker_, "close_all", "600"), hooks);
  EXPECT_TRUE(stopped);
  EXPECT_EQ(outcome.end, End::exited);
  EXPECT_EQ(outcome.code, 0);
}

TEST_F(Supervisor, DriverAndSupervisorKilledTogetherLeaveOnlyWhatTheNextDriverFinds) {
  const pid_t launcher = ::fork();
  ASSERT_GE(launcher, 0);
  if (launcher == 0) {
    ::execl("/proc/self/exe", "launch", "__launch", folder_.c_str(), marker_.c_str(), "ignore_term",
            nullptr);
    ::_exit(127);
  }
  ASSERT_TRUE(within(5, [&] { return marked(marker_).size() >= 4; }));
  std::vector<pid_t> supervisors;
  for (const poros::ProcessInfo& info : poros::list_processes()) {
    if (info.parent == launcher) supervisors.push_back(info.pid);
  }
  ASSERT_EQ(supervisors.size(), 1U);
  ::kill(launcher, SIGSTOP);  // neither may react to the other's death
  ::kill(supervisors[0], SIGKILL);
  ::kill(launcher, SIGKILL);
  ::waitpid(launcher, nullptr, 0);
  EXPECT_EQ(poros::kill_tagged(poros::kCellTagVariable, "test/" + marker_, 5), 0);
  EXPECT_TRUE(within(1, [&] { return marked(marker_).empty(); }));
}

/// A memory cgroup of its own (v1) with a limit, for as long as the object lives.
class MemoryLimit {
 public:
  explicit MemoryLimit(long bytes) {
    for (const poros::OomCounter counter; const fs::path& file : counter.files()) {
      if (file.filename() == "memory.oom_control") home_ = file.parent_path();
    }
    if (home_.empty()) return;
    group_ = home_ / ("poros-test-" + std::to_string(::getpid()));
    if (::mkdir(group_.c_str(), 0755) != 0) return;
    std::ofstream(group_ / "memory.limit_in_bytes") << bytes << std::flush;
    std::ofstream procs(group_ / "cgroup.procs");
    ready = static_cast<bool>(procs << ::getpid() << std::flush);
  }
  ~MemoryLimit() {
    if (group_.empty()) return;
    std::ofstream(home_ / "cgroup.procs") << ::getpid() << std::flush;
    ::rmdir(group_.c_str());
  }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;
  bool ready = false;

 private:
  fs::path home_, group_;
};

TEST_F(Supervisor, AKillByTheKernelForWantOfMemoryIsNamedOom) {
  const MemoryLimit limit(long{300} << 20);
  if (!limit.ready) GTEST_SKIP() << "needs a writable v1 memory cgroup";
  const poros::OomCounter counter;
  const CellOutcome outcome =
      poros::run_cell(nasty(folder_, marker_, "hog", "2000"), {}, poros::Redactor(), counter);
  EXPECT_EQ(outcome.end, End::signalled);
  EXPECT_EQ(outcome.code, SIGKILL);
  EXPECT_TRUE(outcome.oom_killed);
  const CellOutcome small =
      poros::run_cell(nasty(folder_, marker_, "hog", "100"), {}, poros::Redactor(), counter);
  EXPECT_EQ(small.code, 0);
  EXPECT_FALSE(small.oom_killed);
}

/// The driver of KillingTheDriverKillsEverything.
int launch(char** argv) {
  const CellCommand command = nasty(argv[2], argv[3], argv[4]);
  // Cells that end by themselves are followed by the next, so that the kill meets one running.
  while (true) {
    static_cast<void>(poros::run_cell(command, {}, poros::Redactor(),
                                      poros::OomCounter(std::vector<fs::path>())));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (poros::is_supervisor_command(argc, argv)) return poros::supervisor_main(argc, argv);
  if (argc == 5 && std::string(argv[1]) == "__launch") return launch(argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
