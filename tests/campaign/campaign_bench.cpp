// SPDX-License-Identifier: Apache-2.0
// campaign-bench [overhead] [ranks] [resume] [gather] [schedule] [--scale F] [--where DIR]: what
// the campaign driver costs beside its cells. Prints each figure with its target; exit code 1 when
// one is missed. --scale 0.1 takes a tenth of the cells; --where puts the campaigns on another disk
// than memory.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/files.hpp"
#include "base/median.hpp"
#include "base/subprocess.hpp"
#include "campaign/plan.hpp"
#include "cell/protocol.hpp"
#include "cell/request.hpp"
#include "chaos_fixture.hpp"
#include "made_campaign.hpp"
#include "other_program.hpp"
#include "receipts/hdf5_store.hpp"
#include "receipts/journal.hpp"
#include "simulated_schedule.hpp"
#include "spec/spec_reader.hpp"

namespace poros::testing {
namespace {
namespace fs = std::filesystem;

struct Bench {
  double scale = 1;
  fs::path where;
  bool missed = false;

  [[nodiscard]] std::int64_t scaled(std::int64_t count) const {
    return std::max<std::int64_t>(2, static_cast<std::int64_t>(static_cast<double>(count) * scale));
  }
  void figure(const std::string& name, double value, const char* unit, double target = 0) {
    const bool bad = target > 0 && value > target;
    missed = missed || bad;
    fmt::print("{:<58} {:>10.3f} {:<4}{}\n", name, value, unit,
               target > 0 ? fmt::format(" (target {:g}){}", target, bad ? "  MISSED" : "") : "");
    std::fflush(stdout);
  }
  void require(bool holds, const std::string& what) {
    if (holds) return;
    missed = true;
    fmt::print("WRONG: {}\n", what);
  }
};

/// A campaign that is removed at the end.
struct Scoped {
  MadeCampaign made;
  ~Scoped() {
    std::error_code error;
    fs::remove_all(made.root, error);
  }
};

ProcessResult drive(const MadeCampaign& made) {
  return run_process({"/proc/self/exe", "__drive", made.spec().string(), made.dir().string()},
                     3600);
}

/// Median time of the fake cell on a request of this campaign, started directly.
double own_run_s(const MadeCampaign& made) {
  const CampaignPlan plan = make_plan(read_spec(made.spec()));
  CellRequest request;
  request.cell = plan.cells.front().spec;
  request.cell_key = plan.cells.front().key;
  request.result_path = made.root / "result.json";
  const fs::path path = made.root / "request.json";
  write_file_durably(path, dump_json(to_json(request)) + "\n");
  std::vector<double> times;
  for (int i = 0; i < 50; ++i) {
    const double start_s = monotonic_s();
    const ProcessResult result =
        run_process({"/proc/self/exe", "run", path.string()}, 60, {{kEventFdVariable, "1"}});
    times.push_back(monotonic_s() - start_s);
    if (result.exit_code != 0) fail(Fault::run, "the fake cell failed: {}", result.err);
  }
  std::sort(times.begin(), times.end());
  return median_of_sorted(times);
}

void overhead(Bench& bench) {
  const Scoped scoped{make_campaign(bench.scaled(300), 8, bench.where)};
  const MadeCampaign& made = scoped.made;
  const std::int64_t cells = made.cells;
  const double own_ms = own_run_s(made) * 1e3;
  const double start_s = monotonic_s();
  const ProcessResult result = drive(made);
  const double wall_s = monotonic_s() - start_s;
  bench.require(result.exit_code == 0, result.err);
  const double store_start_s = monotonic_s();
  static_cast<void>(gather(made.dir()));
  const double store_s = monotonic_s() - store_start_s;
  double supervised_s = 0;
  std::int64_t passes = 0;
  for (const Receipt& receipt : read_journal(made.dir() / kJournalName).receipts) {
    if (receipt.kind != "attempt") continue;
    const Json record = parse_json(read_file(made.dir() / receipt.artifact_path), "record");
    supervised_s += record.at("driver").at("wall_s").get<double>();
    ++passes;
  }
  bench.require(passes == cells, "records are missing");
  const double cell_ms = (wall_s - store_s) / static_cast<double>(cells) * 1e3;
  bench.figure(fmt::format("{} no-op cells, one process: wall time a cell", cells), cell_ms, "ms");
  bench.figure("  from the supervisor's start to its end",
               supervised_s / static_cast<double>(passes) * 1e3, "ms");
  bench.figure("  the cell's own run, started directly", own_ms, "ms");
  bench.figure("driver overhead a cell, beside the cell's own run", cell_ms - own_ms, "ms", 30);
  bench.figure("  store of all cells, once", store_s, "s");
}

void ranks(Bench& bench) {
  const Scoped scoped{make_campaign(bench.scaled(2000), 8, bench.where)};
  const MadeCampaign& made = scoped.made;
  const std::int64_t cells = made.cells;
  const std::string self = fs::read_symlink("/proc/self/exe").string();
  const double start_s = monotonic_s();
  const ProcessResult result =
      run_process({"mpirun", "-n", "64", "--oversubscribe", self, "__matrix", made.spec().string(),
                   made.dir().string(), "120"},
                  3600,
                  {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                   {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                   {"OMPI_MCA_btl", "self,vader"},
                   {"OMPI_MCA_orte_tmpdir_base", made.root.string()}});
  const double wall_s = monotonic_s() - start_s;
  bench.require(result.exit_code == 0, result.out + result.err);
  std::int64_t attempts = 0, finished = 0;
  for (const Receipt& receipt : read_journal(made.dir() / kJournalName).receipts) {
    attempts += receipt.kind == "attempt" && receipt.fields.at("status") == "ok" ? 1 : 0;
    finished += receipt.kind == "cell" ? 1 : 0;
  }
  bench.figure(fmt::format("64 ranks, {} no-op cells: wall time", cells), wall_s, "s");
  bench.figure("  receipts of passes that ended ok", static_cast<double>(attempts), "");
  bench.figure("  receipts of cells", static_cast<double>(finished), "");
  bench.require(attempts == cells && finished == cells, "receipts are missing");
}

/// CPU time of a running process so far.
double cpu_s(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  const std::string stat(std::istreambuf_iterator<char>(file), {});
  std::istringstream fields(stat.substr(stat.rfind(')') + 1));
  std::string skipped;
  for (int field = 3; field < 14; ++field) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

void resume(Bench& bench) {
  const std::int64_t cells = bench.scaled(5000);
  const Scoped scoped{make_campaign(cells + 1, 8, bench.where)};
  const MadeCampaign& made = scoped.made;
  make_records(made, cells);
  const double start_s = monotonic_s();
  const pid_t child = ::fork();
  if (child == 0) {
    std::freopen("/dev/null", "w", stdout);
    ::execl("/proc/self/exe", "campaign-bench", "__drive", made.spec().c_str(), made.dir().c_str(),
            nullptr);
    ::_exit(127);
  }
  int status = 0;
  double begun_s = 0, begun_cpu_s = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    if (begun_s == 0 && fs::exists(made.calls())) {
      begun_s = monotonic_s() - start_s;
      begun_cpu_s = cpu_s(child);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  bench.require(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the run failed");
  bench.figure(fmt::format("going on over {} receipts, until the next cell runs", 2 * cells),
               begun_s, "s", 1);
  bench.figure("  the driver's CPU time until then", begun_cpu_s, "s");
  bench.figure("  until the command has ended (its store made anew)", monotonic_s() - start_s, "s");
}

void gather_all(Bench& bench) {
  const Scoped scoped{make_campaign(bench.scaled(10'000), 200, bench.where)};
  const MadeCampaign& made = scoped.made;
  const std::int64_t cells = made.cells;
  make_records(made, cells);
  const double start_s = monotonic_s();
  const pid_t child = ::fork();  // a process of its own: its peak memory is that of gathering
  if (child == 0) {
    ::execl("/proc/self/exe", "campaign-bench", "__gather", made.dir().c_str(), nullptr);
    ::_exit(127);
  }
  int status = 0;
  rusage usage{};
  ::wait4(child, &status, 0, &usage);
  bench.require(WIFEXITED(status) && WEXITSTATUS(status) == 0, "gather failed");
  bench.figure(fmt::format("gather of {} cells with series of 200 steps", cells),
               monotonic_s() - start_s, "s", 20);
  bench.figure("  peak memory", static_cast<double>(usage.ru_maxrss) / 1024, "MiB");
  bench.figure("  campaign.h5",
               static_cast<double>(fs::file_size(made.dir() / kStoreFile)) / (1 << 20), "MiB");
}

void schedule(Bench& bench) {
  const Scoped scoped{make_campaign(1, 8, bench.where)};
  const double start_s = monotonic_s();
  const ScheduleFigures figures = simulate_schedule({}, scoped.made.root);
  const double wall_s = monotonic_s() - start_s;
  bench.figure("simulated schedule, 64 GPUs of 4 types: makespan over bound",
               figures.makespan_s / figures.bound_s, "", 1.05);
  for (std::size_t type = 0; type < figures.types.size(); ++type) {
    bench.figure(fmt::format("  type {}", type),
                 figures.types[type].makespan_s / figures.types[type].bound_s, "", 1.05);
  }
  bench.figure("  cells that ended", static_cast<double>(figures.finished), "");
  bench.figure("  of them failed", static_cast<double>(figures.failed), "");
  bench.figure("  attempts lost", static_cast<double>(figures.lost), "");
  bench.figure("  GPUs set aside", static_cast<double>(figures.set_aside), "");
  bench.figure("  rank 0's time an attempt",
               wall_s / static_cast<double>(figures.finished + figures.lost) * 1e3, "ms");
}

int run(int argc, char** argv) {
  Bench bench;
  std::vector<std::string> wanted;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--scale" && i + 1 < argc) {
      bench.scale = std::strtod(argv[++i], nullptr);
    } else if (word == "--where" && i + 1 < argc) {
      bench.where = argv[++i];
    } else {
      wanted.push_back(word);
    }
  }
  const std::vector<std::pair<std::string, std::function<void(Bench&)>>> parts{
      {"overhead", overhead},
      {"ranks", ranks},
      {"resume", resume},
      {"gather", gather_all},
      {"schedule", schedule}};
  for (const std::string& word : wanted) {
    const bool known = std::any_of(parts.begin(), parts.end(),
                                   [&](const auto& part) { return part.first == word; });
    if (!known)
      fail(Fault::usage, "{}: expected overhead, ranks, resume, gather or schedule", word);
  }
  for (const auto& [name, part] : parts) {
    if (wanted.empty() || std::find(wanted.begin(), wanted.end(), name) != wanted.end()) {
      part(bench);
    }
  }
  return bench.missed ? kFailed : kDone;
}

}  // namespace
}  // namespace poros::testing

int main(int argc, char** argv) {
  using namespace poros;
  namespace own = poros::testing;
  try {
    if (argc == 2 && std::strcmp(argv[1], "__noop") == 0) return kDone;
    if (argc == 3 && std::strcmp(argv[1], "__gather") == 0) {
      static_cast<void>(gather(argv[2]));
      return kDone;
    }
    if (argc == 5 && std::strcmp(argv[1], "__make") == 0) {  // CELLS STEPS FINISHED: to profile
      const auto made = own::make_campaign(std::atol(argv[2]), std::atol(argv[3]));
      own::make_records(made, std::atol(argv[4]));
      fmt::print("{}\n", made.root.string());
      return kDone;
    }
    if (argc == 5 && std::strcmp(argv[1], "__matrix") == 0) return own::matrix_main(argc, argv);
    if (const auto code = own::other_program(argc, argv)) return *code;
    return own::run(argc, argv);
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return error.exit_code();
  }
}
