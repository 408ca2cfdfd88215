// SPDX-License-Identifier: Apache-2.0
#include "driver_fixture.hpp"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/files.hpp"
#include "base/sha256.hpp"
#include "campaign/campaign.hpp"
#include "cell/processes.hpp"
#include "receipts/journal.hpp"
#include "receipts/pass_record.hpp"

namespace poros::testing {
namespace fs = std::filesystem;

namespace {
constexpr const char* kMarker = "POROS_DRIVER_TEST";

fs::path scratch() {
  return ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : fs::temp_directory_path();
}

/// One quantised base for all tests of a suite.
fs::path cache_dir() {
  return scratch() / ("poros-driver-cache-" + std::to_string(::getpid()));
}
}  // namespace

void DriverTest::TearDownTestSuite() {
  fs::remove_all(cache_dir());
}

void DriverTest::SetUp() {
  std::string pattern = (scratch() / "poros-driver.XXXXXX").string();
  root_ = ::mkdtemp(pattern.data());
  dir_ = root_ / "out";
  spec_ = root_ / "spec.yaml";
  ::setenv(kMarker, root_.c_str(), 1);
  ::setenv("POROS_FAKE_CELL", (root_ / "cells.json").c_str(), 1);
  ::setenv("POROS_PYTHON", "/proc/self/exe", 1);
  ::setenv("POROS_PEERS_DIR", root_.c_str(), 1);  // holds no runner: peers are not installed
  ::setenv("POROS_PEERS_PYTHON", "", 1);
  ::setenv("POROS_THREADS", "1", 1);
  ::setenv("POROS_CACHE_DIR", cache_dir().c_str(), 1);
  write_spec();
  set_cells(Json::object());
}

void DriverTest::TearDown() {
  EXPECT_TRUE(within(5, [&] { return survivors() == 0; })) << "processes are left";
  static_cast<void>(kill_tagged(kMarker, root_.string(), 5));
  fs::remove_all(root_);
}

void DriverTest::write_spec(const std::string& methods, int passes, int steps,
                            const std::string& more) {
  std::ofstream(spec_) << "spec_id: driver-test\n"
                          "device: cpu\n"
                          "models:\n"
                          "  - model_id: "
                       << POROS_SOURCE_DIR << "/configs/models/kjv-qwen2\n"
                       << "    display_name: KJV\n"
                       << "methods: " << methods << "\n"
                       << "training:\n"
                          "  seq_len: 16\n"
                          "  batch_size: 2\n"
                          "  gradient_accumulation_steps: 1\n"
                          "  dataset: synthetic\n"
                       << "  steps: " << steps << "\n"
                       << "  n_passes: " << passes << "\n"
                       << more;
}

void DriverTest::set_cells(const Json& settings) {
  std::ofstream(root_ / "cells.json") << dump_json(settings);
}

ProcessResult DriverTest::drive(const std::vector<std::string>& flags) {
  std::vector<std::string> argv{"/proc/self/exe", "__drive", spec_.string(), dir_.string()};
  argv.insert(argv.end(), flags.begin(), flags.end());
  return run_process(argv, 60);
}

pid_t DriverTest::start(const std::vector<std::string>& flags) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::setpgid(0, 0);
  ::signal(SIGINT, SIG_DFL);  // a background job of a shell has it ignored
  const int log = ::open((root_ / "driver.log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  ::dup2(log, 1);
  ::dup2(log, 2);
  std::vector<std::string> words{"driver_test", "__drive", spec_.string(), dir_.string()};
  words.insert(words.end(), flags.begin(), flags.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execv("/proc/self/exe", argv.data());
  ::_exit(127);
}

int DriverTest::wait_for(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::vector<std::string> DriverTest::calls() const {
  std::ifstream file(root_ / "cells.json.calls");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

void DriverTest::forget_calls() const {
  fs::remove(root_ / "cells.json.calls");
}

std::vector<Receipt> DriverTest::receipts() const {
  return read_journal(dir_ / kJournalName).receipts;
}

std::vector<Receipt> DriverTest::receipts(const std::string& kind) const {
  std::vector<Receipt> result;
  for (const Receipt& receipt : receipts()) {
    if (receipt.kind == kind) result.push_back(receipt);
  }
  return result;
}

RunArtifact DriverTest::artifact(const std::string& method) const {
  const fs::path path = dir_ / (method + "_kjv-qwen2_nf4.json");
  return run_artifact_from_json(parse_json(read_file(path), path.string()), path.string());
}

Json DriverTest::parity() const {
  const std::vector<Receipt> all = receipts("parity");
  if (all.empty()) return nullptr;
  return parse_json(read_file(dir_ / all.back().artifact_path), "parity");
}

void DriverTest::expect_whole(std::size_t cells, std::size_t passes) const {
  std::map<std::string, Receipt> last_cell;
  std::map<std::string, int> good;
  for (const Receipt& receipt : receipts()) {
    if (receipt.kind == "cell") last_cell[receipt.key] = receipt;
    if (receipt.kind == "attempt") {
      EXPECT_EQ(sha256_file(dir_ / receipt.artifact_path), receipt.artifact_sha256);
      if (receipt.fields.at("purpose") == "timed" && receipt.fields.at("status") == "ok") {
        ++good[receipt.key + "/" + dump_json(receipt.fields.at("pass"))];
      }
    }
  }
  EXPECT_EQ(last_cell.size(), cells);
  EXPECT_EQ(good.size(), cells * passes);
  for (const auto& [pass, count] : good) EXPECT_EQ(count, 1) << pass << " was measured twice";
  for (const auto& [key, receipt] : last_cell) {
    EXPECT_EQ(sha256_file(dir_ / receipt.artifact_path), receipt.artifact_sha256);
    EXPECT_EQ(receipt.fields.at("status"), "ok");
  }
}

int DriverTest::survivors() const {
  return static_cast<int>(tagged_processes(kMarker, root_.string()).size());
}

int drive_main(int argc, char** argv) {
  CampaignOptions options;
  options.spec_path = argv[2];
  options.output_dir = argv[3];
  options.cell_program = "/proc/self/exe";
  options.argc = argc;
  options.argv = argv;
  for (int i = 4; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--retry") options.retry = true;
    if (flag == "--fresh") options.fresh = true;
    if (flag == "--json") options.json = true;
    if (flag == "--only") options.only.emplace_back(argv[++i]);
    if (flag == "--shard") options.shard = argv[++i];
    if (flag == "--shard-name") options.shard_name = argv[++i];
    if (flag == "--until-stable") options.until_stable = std::atof(argv[++i]) / 100;
    if (flag == "--max-passes") options.max_passes = std::atol(argv[++i]);
    if (flag == "--max-hours") options.max_hours = std::atof(argv[++i]);
    if (flag == "--max-failures") options.max_failures = std::atol(argv[++i]);
    if (flag == "--passes") options.n_passes = std::atol(argv[++i]);
  }
  try {
    return run_campaign(options);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
}

}  // namespace poros::testing
