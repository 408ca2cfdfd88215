// SPDX-License-Identifier: Apache-2.0
// Stands in for poros where a test is of the jobs and not of the cells: a world of MPI ranks that
// works through cells which only take time, by the rules that a driver keeps (finished cells are
// on disk before they count, no cell that does not fit before the job's end, drains when asked,
// ends with 75 when it is not done). It says on disk which device each rank has.
//
//   lab_world bench matrix SPEC --output-dir DIR ...   DIR/cells: a line a cell, "<type> <seconds>"
//   lab_world bench gather DIR | bench report DIR
//   lab_world submit SPEC SPEC ... -- CLUSTER DIR [--single-job] [--wait] [--dry-run]
//                                                   the cells of several specs as one campaign
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/json.hpp"
#include "campaign/slurm_rank.hpp"
#include "campaign/slurm_submit.hpp"
#include "spec/spec_reader.hpp"

namespace poros {
namespace {
namespace fs = std::filesystem;

volatile std::sig_atomic_t g_asked_to_stop = 0;
extern "C" void on_stop(int) {
  g_asked_to_stop = 1;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

struct Cell {
  std::string type;
  double seconds = 0;
};

std::vector<Cell> read_cells(const fs::path& campaign) {
  std::vector<Cell> cells;
  std::ifstream in(campaign / "cells");
  for (Cell cell; in >> cell.type >> cell.seconds;) cells.push_back(cell);
  return cells;
}

/// Creates a file that must not exist, durably. @returns false when it exists
bool create(const fs::path& path, const std::string& text) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd) return false;
  write_all(fd.get(), text.data(), text.size(), path);
  return ::fsync(fd.get()) == 0;
}

/// The texts of all ranks, on rank 0.
std::vector<std::string> gather_texts(const std::string& text, int rank, int ranks) {
  constexpr int kBytes = 512;
  std::vector<char> own(kBytes, '\0'), all(static_cast<std::size_t>(ranks) * kBytes);
  std::memcpy(own.data(), text.data(), std::min<std::size_t>(text.size(), kBytes - 1));
  MPI_Gather(own.data(), kBytes, MPI_CHAR, all.data(), kBytes, MPI_CHAR, 0, MPI_COMM_WORLD);
  std::vector<std::string> texts;
  for (int i = 0; rank == 0 && i < ranks; ++i) {
    texts.emplace_back(all.data() + static_cast<std::size_t>(i) * kBytes);
  }
  return texts;
}

std::string own_token(int local_rank) {
  std::istringstream tokens(variable("CUDA_VISIBLE_DEVICES"));
  std::string token;
  for (int i = 0; i <= local_rank; ++i) {
    if (!std::getline(tokens, token, ',')) return "none";
  }
  return token;
}

/// Works on this rank's share. @returns whether it stopped before the end
bool work(const fs::path& campaign, const std::vector<Cell>& cells, const std::string& type,
          int index, int of, const std::string& who) {
  int turn = 0;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const fs::path done = campaign / "done" / std::to_string(i);
    if (cells[i].type != type) continue;
    if (turn++ % of != index || fs::exists(done)) continue;
    if (const auto left = job_seconds_left(); left && *left < cells[i].seconds) return true;
    const std::time_t end = std::time(nullptr) + static_cast<std::time_t>(cells[i].seconds);
    while (std::time(nullptr) < end) {
      if (g_asked_to_stop != 0) return true;
      const timespec pause{0, 50'000'000};
      ::nanosleep(&pause, nullptr);
    }
    if (!create(done, who)) create(campaign / "twice" / std::to_string(i), who);
  }
  return false;
}

int matrix(const fs::path& campaign) {
  struct sigaction action {};
  action.sa_handler = on_stop;
  for (const int number : {SIGUSR1, SIGTERM}) ::sigaction(number, &action, nullptr);
  MPI_Init(nullptr, nullptr);
  int rank = 0, ranks = 1, local_rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MPI_Comm node = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
  MPI_Comm_rank(node, &local_rank);
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  const std::string type = announced_gpu_type();
  const Json self{{"host", host},
                  {"token", own_token(local_rank)},
                  {"type", type},
                  {"pid", ::getpid()},
                  {"seconds_left", job_seconds_left() ? Json(*job_seconds_left()) : Json()}};
  const std::string name =
      variable("SLURM_JOB_ID") + "." +
      (variable("SLURM_RESTART_COUNT").empty() ? "0" : variable("SLURM_RESTART_COUNT"));
  if (rank == 0) {
    for (const char* folder : {"done", "twice", "worlds"})
      fs::create_directories(campaign / folder);
  }
  const auto all = gather_texts(dump_json(self), rank, ranks);
  if (rank == 0) {
    Json world = Json::array();
    for (const std::string& text : all) world.push_back(parse_json(text, "rank"));
    write_file_durably(campaign / "worlds" / (name + ".json"), dump_json(world));
  }
  // Which of the ranks of one type this is.
  const int kind = static_cast<int>(std::hash<std::string>{}(type)&0xffffff);
  MPI_Comm same = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, kind, rank, &same);
  int index = 0, of = 1;
  MPI_Comm_rank(same, &index);
  MPI_Comm_size(same, &of);
  const std::string who = name + " " + host + ":" + own_token(local_rank) + "\n";
  int stopped = work(campaign, read_cells(campaign), type, index, of, who) ? 1 : 0;
  int any = 0;
  MPI_Allreduce(&stopped, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  // Launchers kill the others when a rank ends with another code than 0; rank 0 is the last to.
  return rank == 0 && any != 0 ? kStoppedEarly : kDone;
}

int count_done(const fs::path& campaign) {
  std::size_t done = 0;
  std::error_code error;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(campaign / "done", error))
    ++done;
  std::printf("%zu cells done\n", done);
  return done == read_cells(campaign).size() ? kDone : kFailed;
}

int submit(const std::vector<std::string>& words) {
  SubmitOptions options;
  CampaignPlan plan;
  std::size_t at = 0;
  for (; words[at] != "--"; ++at) {
    CampaignPlan one = make_plan(read_spec(words[at]));
    if (at == 0) {
      options.spec = words[at];
      plan = std::move(one);
      continue;
    }
    for (auto& cell : one.cells) plan.cells.push_back(std::move(cell));
  }
  options.cluster = words.at(at + 1);
  options.output_dir = words.at(at + 2);
  options.program = fs::read_symlink("/proc/self/exe");
  for (std::size_t i = at + 3; i < words.size(); ++i) {
    options.single_job = options.single_job || words[i] == "--single-job";
    options.wait = options.wait || words[i] == "--wait";
    options.dry_run = options.dry_run || words[i] == "--dry-run";
  }
  return submit_plan(options, plan);
}

int run(const std::vector<std::string>& words) {
  if (words.at(0) == "submit") return submit({words.begin() + 1, words.end()});
  if (words.at(1) == "gather" || words.at(1) == "report") return count_done(words.at(2));
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    if (words[i] == "--output-dir") return matrix(words[i + 1]);
  }
  return kWrongInput;
}

}  // namespace
}  // namespace poros

int main(int argc, char** argv) {
  try {
    return poros::run({argv + 1, argv + argc});
  } catch (const poros::Error& error) {
    std::fprintf(stderr, "lab_world: %s\n", error.what());
    return error.exit_code();
  }
}
