// SPDX-License-Identifier: Apache-2.0
#include "chaos_fixture.hpp"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "campaign/campaign.hpp"
#include "cell/processes.hpp"
#include "cell/supervisor.hpp"
#include "receipts/journal.hpp"

namespace poros::testing {
namespace fs = std::filesystem;
namespace {

constexpr const char* kMarker = "POROS_DRIVER_TEST";
constexpr const char* kMatrixCommand = "__matrix";

std::string proc_text(pid_t pid, const char* name) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; std::getline(stream, word, '\0');) words.push_back(word);
  return words;
}

int rank_of(pid_t pid) {
  const std::string name = "OMPI_COMM_WORLD_RANK=";
  for (const std::string& entry : words_of(proc_text(pid, "environ"))) {
    if (entry.rfind(name, 0) == 0) return std::atoi(entry.c_str() + name.size());
  }
  return -1;
}

}  // namespace

const char* name_of(Role role) {
  switch (role) {
    case Role::launcher:
      return "mpirun";
    case Role::rank:
      return "rank";
    case Role::supervisor:
      return "supervisor";
    case Role::cell:
      return "cell";
  }
  return "?";
}

void ChaosTest::SetUp() {
  DriverTest::SetUp();
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  ::setenv("OMPI_MCA_orte_tmpdir_base", root_.c_str(),
           1);                                // what a killed mpirun leaves
  ::setenv("OMPI_MCA_btl", "self,vader", 1);  // one host: no search for networks
  const fs::path settings = root_ / "cells.json";
  const Json paced{{"step_s", 0.003}};
  std::ofstream(settings) << dump_json({{"poros", paced}, {"resident", paced}});
}

void ChaosTest::write_matrix(int groups) {
  std::string more = "timeouts: {load: 4, step: 2, cell: 20}\nhardware:\n";
  for (int i = 0; i < groups; ++i) more += "  - gpu_name: slot-" + std::to_string(i) + "\n";
  write_spec("[poros, resident]", 2, 20, more);
}

pid_t ChaosTest::start_matrix(bool over_ranks) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::setpgid(0, 0);
  const int log = ::open((root_ / "driver.log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  ::dup2(log, 1);
  ::dup2(log, 2);
  const std::string self = fs::read_symlink("/proc/self/exe").string();
  std::vector<std::string> words;
  if (over_ranks) words = {"mpirun", "-n", std::to_string(kRanks), "--oversubscribe"};
  words.insert(words.end(),
               {self, kMatrixCommand, spec_.string(), dir_.string(), std::to_string(kSilent_s)});
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execvp(argv[0], argv.data());
  ::_exit(127);
}

int ChaosTest::wait_at_most(pid_t child, double seconds) {
  int status = 0;
  if (!within(seconds, [&] { return ::waitpid(child, &status, WNOHANG) == child; })) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int ChaosTest::run_matrix(bool over_ranks) {
  return wait_at_most(start_matrix(over_ranks), 100);
}

std::vector<FoundProcess> ChaosTest::processes() const {
  std::vector<FoundProcess> found;
  for (const ProcessInfo& info : tagged_processes(kMarker, root_.string())) {
    const std::vector<std::string> words = words_of(proc_text(info.pid, "cmdline"));
    if (words.empty()) continue;
    const auto is = [&](const char* command) { return words.size() > 1 && words[1] == command; };
    if (words[0] == "mpirun") {
      found.push_back({info.pid, Role::launcher, -1});
    } else if (is(kMatrixCommand)) {
      found.push_back({info.pid, Role::rank, rank_of(info.pid)});
    } else if (is(kSuperviseCommand)) {
      found.push_back({info.pid, Role::supervisor, -1});
    } else if (is("run")) {
      found.push_back({info.pid, Role::cell, -1});
    }
  }
  return found;
}

std::string ChaosTest::news() {
  std::ifstream file(root_ / "driver.log", std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const std::string fresh = text.substr(std::min(log_read_, text.size()));
  log_read_ = text.size();
  return fresh;
}

std::vector<std::string> ChaosTest::lines() const {
  std::vector<std::string> lines;
  if (!fs::exists(dir_ / kJournalName)) return lines;
  for (const Receipt& receipt : receipts()) lines.push_back(to_line(receipt));
  return lines;
}

void ChaosTest::expect_each_pass_once(std::size_t cells, std::size_t passes) const {
  expect_whole(cells, passes);
  std::map<std::string, std::string> last;
  for (const Receipt& receipt : receipts("attempt")) {
    const std::string pass = receipt.key + "/" + dump_json(receipt.fields.at("purpose")) + "/" +
                             dump_json(receipt.fields.at("pass"));
    EXPECT_NE(last[pass], "ok") << pass << " ran again after it had ended well";
    last[pass] = receipt.fields.at("status").get<std::string>();
  }
  for (const auto& [pass, status] : last) EXPECT_EQ(status, "ok") << pass;
}

int matrix_main(int argc, char** argv) {
  CampaignOptions options;
  options.spec_path = argv[2];
  options.output_dir = argv[3];
  options.cell_program = "/proc/self/exe";
  options.argc = argc;
  options.argv = argv;
  options.over_ranks = true;
  options.retry = true;
  options.plain = true;
  options.rank_silent_s = std::strtod(argv[4], nullptr);
  try {
    return run_campaign(options);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
}

}  // namespace poros::testing
