// SPDX-License-Identifier: Apache-2.0
// Chaos: any process of a campaign is killed or stopped at any moment, and the same command goes on
// until the campaign is whole. POROS_CHAOS_ROUNDS sets how often (default 8), POROS_CHAOS_SEED
// repeats a run.
#include <cstdlib>
#include <cstring>
#include <random>

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "base/files.hpp"
#include "chaos_fixture.hpp"
#include "other_program.hpp"

namespace poros::testing {
namespace {
namespace fs = std::filesystem;

constexpr int kGroups = 3;
constexpr std::size_t kCells = 2 * kGroups, kPasses = 2;
constexpr double kEnd_s = 60, kNothingLeft_s = 10;  // for a loaded machine; promised are 5 s

std::uint32_t number_or(const char* name, std::uint32_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : static_cast<std::uint32_t>(std::strtoul(text, nullptr, 10));
}

bool has_mpirun() {
  static const bool found = run_process({"mpirun", "--version"}, 20).exit_code == 0;
  return found;
}

class Chaos : public ChaosTest {
 protected:
  /// One disturbance of a running campaign. @returns the command's exit code
  int disturb(bool over_ranks, std::mt19937& random);
  /// Acknowledged records are still there, byte for byte, and in place.
  void expect_kept();

  std::vector<std::string> acknowledged_;
};

void Chaos::expect_kept() {
  const std::vector<std::string> now = lines();
  ASSERT_GE(now.size(), acknowledged_.size()) << "acknowledged records are lost";
  for (std::size_t i = 0; i < acknowledged_.size(); ++i) ASSERT_EQ(now[i], acknowledged_[i]);
  acknowledged_ = now;
}

int Chaos::disturb(bool over_ranks, std::mt19937& random) {
  // The moment: after so many more cells have begun, and a little; or while it starts up.
  const std::size_t begun = calls().size(), more = random() % 6;
  const auto delay_us = static_cast<useconds_t>(random() % (more == 0 ? 600'000 : 100'000));
  const auto wanted = static_cast<Role>(random() % 4);
  const int number = random() % 2 == 0 ? SIGKILL : SIGSTOP;
  const std::uint32_t choice = random();
  const pid_t child = start_matrix(over_ranks);
  int code = -1;
  static_cast<void>(within(kEnd_s, [&] {
    code = wait_at_most(child, 0);
    return code != -1 || calls().size() >= begun + more;
  }));
  ::usleep(delay_us);
  // One of the wanted kind, where there is one at that moment, else of any kind.
  std::vector<FoundProcess> victims = processes(), wanted_ones;
  for (const FoundProcess& process : victims) {
    if (process.role == wanted) wanted_ones.push_back(process);
  }
  if (!wanted_ones.empty()) victims = wanted_ones;
  std::string what = "nothing, it had ended";
  std::optional<FoundProcess> stopped;
  if (!victims.empty()) {
    const FoundProcess victim = victims[choice % victims.size()];
    what = fmt::format("{} to {} {} (pid {})", number == SIGKILL ? "SIGKILL" : "SIGSTOP",
                       name_of(victim.role), victim.rank, victim.pid);
    if (::kill(victim.pid, number) == 0 && number == SIGSTOP) stopped = victim;
  }
  const std::string told =
      fmt::format("{}, after {} cells and {:.3f} s: {}", over_ranks ? "4 ranks" : "1 process", more,
                  delay_us * 1e-6, what);
  std::fprintf(stderr, "%s\n", told.c_str());
  SCOPED_TRACE(told);
  if (stopped && (stopped->role == Role::launcher || !over_ranks)) {
    // A launcher that sleeps is no silent rank, and a driver alone has nobody who could miss it: a
    // person wakes or kills it.
    if (stopped->role == Role::rank) {
      ::usleep(300'000);
      ::kill(stopped->pid, SIGKILL);
    } else {
      ::usleep(500'000);
      ::kill(stopped->pid, SIGCONT);
    }
  }
  if (code == -1) code = wait_at_most(child, kEnd_s);
  const std::string log = news();
  EXPECT_NE(code, -1) << "it does not end\n" << log;
  if (code == -1) ::kill(child, SIGKILL);
  EXPECT_TRUE(within(kNothingLeft_s, [&] { return processes().empty(); })) << "processes are left";
  if (stopped && stopped->role == Role::rank && over_ranks && code != 0) {
    const bool said = log.find("no sign of life") != std::string::npos ||
                      log.find("for a rank that did not come") != std::string::npos;
    EXPECT_TRUE(said) << log;
  }
  expect_kept();
  return code;
}

TEST_F(Chaos, TheSameCommandGoesOnAfterAnything) {
  const std::uint32_t seed = number_or("POROS_CHAOS_SEED", std::random_device{}());
  const std::uint32_t rounds = number_or("POROS_CHAOS_ROUNDS", 8);
  std::fprintf(stderr, "POROS_CHAOS_SEED=%u\n", seed);
  SCOPED_TRACE("POROS_CHAOS_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  write_matrix(kGroups);
  for (std::uint32_t round = 0, disturbed = 0; round < rounds; ++round) {
    const bool over_ranks = has_mpirun() && round % 2 == 0;
    int code = disturb(over_ranks, random);
    if (HasFailure()) return;
    ++disturbed;
    if (code != 0 && disturbed < 4 && round + 1 < rounds) continue;
    // To its end, and a new campaign after that. A cell that was killed or stopped has failed: the
    // command says so once, and tries it again the next time.
    for (int i = 0; i < 5 && code != 0; ++i) {
      code = run_matrix(over_ranks);
      expect_kept();
    }
    ASSERT_EQ(code, 0) << news();
    expect_each_pass_once(kCells, kPasses);
    EXPECT_EQ(receipts("parity").back().fields.at("bitwise_exact"), true);
    EXPECT_EQ(survivors(), 0);
    fs::remove_all(dir_);
    acknowledged_.clear();
    disturbed = 0;
  }
}

/// A rank that sleeps ends the job, with a clear message, within the deadline; all that was
/// finished is kept.
TEST_F(Chaos, AStoppedRankEndsTheJob) {
  if (!has_mpirun()) GTEST_SKIP() << "no mpirun";
  write_matrix(kGroups);
  for (const int which : {0, 2}) {
    SCOPED_TRACE("rank " + std::to_string(which));
    fs::remove_all(dir_);
    acknowledged_.clear();
    const Json slow{{"step_s", 0.4}};  // 8 s a pass: the job can't end before the deadline
    set_cells({{"poros", slow}, {"resident", slow}});
    const pid_t child = start_matrix(true);
    std::optional<FoundProcess> victim;
    ASSERT_TRUE(within(30, [&] { return !calls().empty(); })) << news();
    for (const FoundProcess& process : processes()) {
      if (process.role == Role::rank && process.rank == which) victim = process;
    }
    ASSERT_TRUE(victim.has_value());
    ::kill(victim->pid, SIGSTOP);
    const int code = wait_at_most(child, kEnd_s);
    const std::string log = news();
    // 1, but mpirun of Open MPI 4.1 may crash itself while it ends an aborted job.
    EXPECT_TRUE(code > 0) << code << log;
    const std::string expected =
        which == 0 ? "no sign of life of rank 0 for 4 s" : "rank 2 gave no sign of life for 4 s";
    EXPECT_NE(log.find(expected), std::string::npos) << log;
    EXPECT_TRUE(within(kNothingLeft_s, [&] { return processes().empty(); }));
    expect_kept();
    forget_calls();
  }
  set_cells(Json::object());
  EXPECT_EQ(run_matrix(true), 0) << news();
  expect_each_pass_once(kCells, kPasses);
}

}  // namespace
}  // namespace poros::testing

int main(int argc, char** argv) {
  using poros::testing::matrix_main;
  if (const auto code = poros::testing::other_program(argc, argv)) return *code;
  if (argc == 5 && std::strcmp(argv[1], "__matrix") == 0) return matrix_main(argc, argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
