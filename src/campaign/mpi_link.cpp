// SPDX-License-Identifier: Apache-2.0
// The only file that calls MPI, through its C functions: the old C++ bindings are left out.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <list>
#include <mutex>
#include <thread>

#include <fmt/format.h>
#include <mpi.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/error.hpp"
#include "campaign/rank_link.hpp"

namespace poros {
namespace {

constexpr int kTag = 7;

/// Ends this process when a call that waits for all ranks takes too long: MPI has no deadlines.
class Deadline {
 public:
  Deadline(const char* call, double seconds) : call_(call), seconds_(seconds) {
    sigset_t all, before;  // signals are for the main thread
    sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, &before);
    thread_ = std::thread([this] { watch(); });
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  ~Deadline() {
    {
      const std::scoped_lock lock(mutex_);
      met_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

 private:
  void watch() {
    std::unique_lock lock(mutex_);
    const auto length = std::chrono::duration<double>(seconds_);
    if (changed_.wait_for(lock, length, [this] { return met_; })) return;
    fmt::print(stderr, "{} waited {:.0f} s for a rank that did not come: the job ends\n", call_,
               seconds_);
    std::fflush(stderr);
    // The launcher passes on what was said only while the job lives.
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    std::_Exit(kFailed);
  }

  const char* call_;
  double seconds_;
  bool met_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;
};

class MpiLink : public RankLink {
 public:
  explicit MpiLink(double deadline_s) : parent_(::getppid()), deadline_s_(deadline_s) {
    const Deadline deadline("MPI_Init", deadline_s_);
    // All calls come from one thread at a time, not always the same.
    int provided = MPI_THREAD_SINGLE;
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS) {
      fail(Fault::environment, "MPI can't be started below this launcher");
    }
    if (provided < MPI_THREAD_SERIALIZED) {
      MPI_Finalize();
      fail(Fault::environment, "this MPI library offers no MPI_THREAD_SERIALIZED");
    }
    // Ranks do not outlive their launcher.
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    MPI_Comm local = MPI_COMM_NULL;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &local);
    MPI_Comm_rank(local, &local_rank_);
    MPI_Comm_size(local, &local_size_);
    MPI_Comm_free(&local);
  }
  ~MpiLink() override {
    // Without its launcher MPI_Finalize would wait for ever.
    if (::getppid() != parent_) return;
    const Deadline deadline("MPI_Finalize", deadline_s_);
    MPI_Finalize();
  }
  MpiLink(const MpiLink&) = delete;
  MpiLink& operator=(const MpiLink&) = delete;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  [[nodiscard]] int local_rank() const override { return local_rank_; }
  [[nodiscard]] int local_size() const override { return local_size_; }

  void send(int to, std::string text) override {
    forget_sent();
    Sending& sending = sending_.emplace_back();
    sending.text = std::move(text);
    MPI_Isend(sending.text.data(), static_cast<int>(sending.text.size()), MPI_CHAR, to, kTag,
              MPI_COMM_WORLD, &sending.request);
  }

  [[nodiscard]] std::optional<RankMessage> receive() override {
    forget_sent();
    int arrived = 0;
    MPI_Status status;
    MPI_Iprobe(MPI_ANY_SOURCE, kTag, MPI_COMM_WORLD, &arrived, &status);
    if (arrived == 0) return std::nullopt;
    int bytes = 0;
    MPI_Get_count(&status, MPI_CHAR, &bytes);
    RankMessage message{status.MPI_SOURCE, std::string(static_cast<std::size_t>(bytes), '\0')};
    MPI_Recv(message.text.data(), bytes, MPI_CHAR, status.MPI_SOURCE, kTag, MPI_COMM_WORLD,
             MPI_STATUS_IGNORE);
    return message;
  }

  [[noreturn]] void abort(int exit_code) override {
    MPI_Abort(MPI_COMM_WORLD, exit_code);
    std::_Exit(exit_code);
  }

 private:
  struct Sending {
    std::string text;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  void forget_sent() {
    for (auto at = sending_.begin(); at != sending_.end();) {
      int done = 0;
      MPI_Test(&at->request, &done, MPI_STATUS_IGNORE);
      at = done != 0 ? sending_.erase(at) : std::next(at);
    }
  }

  pid_t parent_;
  double deadline_s_;
  int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
  std::list<Sending> sending_;
};

}  // namespace

bool is_launched_rank() {
  // A batch script has SLURM_PROCID too; PMI's own variables are only set for the ranks of a step.
  constexpr std::array kVariables{"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"};
  for (const char* name : kVariables) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

std::unique_ptr<RankLink> join_ranks(double deadline_s) {
  if (!is_launched_rank()) return nullptr;
  return std::make_unique<MpiLink>(deadline_s);
}

}  // namespace poros
