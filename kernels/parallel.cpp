// SPDX-License-Identifier: Apache-2.0
#include "kernels/parallel.hpp"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace poros {
namespace {

/// Worker threads that sleep between jobs. One job at a time; the caller works too.
class Pool {
 public:
  ~Pool() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  void run(int parts, void (*call)(void*, int), void* context) {
    const std::lock_guard one_job(job_mutex_);
    {
      const std::lock_guard lock(mutex_);
      while (static_cast<int>(workers_.size()) < parts - 1) {
        workers_.emplace_back([this, seen = generation_] { work(seen); });
      }
      call_ = call;
      context_ = context;
      parts_ = parts;
      next_ = 0;
      unfinished_ = parts;
      ++generation_;
    }
    wake_.notify_all();
    // The caller runs parts as well: a loop within its part must not wait for this very job.
    inside_part = true;
    std::unique_lock lock(mutex_);
    take_parts(lock);
    inside_part = false;
    done_.wait(lock, [this] { return unfinished_ == 0; });
  }

 private:
  void work(std::uint64_t seen) {
    inside_part = true;
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return stop_ || generation_ != seen; });
      if (stop_) return;
      seen = generation_;
      take_parts(lock);
    }
  }

  void take_parts(std::unique_lock<std::mutex>& lock) {
    while (next_ < parts_) {
      const int part = next_++;
      auto* const call = call_;
      void* const context = context_;
      lock.unlock();
      call(context, part);
      lock.lock();
      if (--unfinished_ == 0) done_.notify_all();
    }
  }

  std::mutex job_mutex_, mutex_;
  std::condition_variable wake_, done_;
  std::vector<std::thread> workers_;
  void (*call_)(void*, int) = nullptr;
  void* context_ = nullptr;
  int parts_ = 0, next_ = 0, unfinished_ = 0;
  std::uint64_t generation_ = 0;
  bool stop_ = false;

 public:
  static thread_local bool inside_part;
};
thread_local bool Pool::inside_part = false;

void run_on_pool(int parts, void (*call)(void*, int), void* context) {
  if (Pool::inside_part) {  // a parallel loop within a parallel loop runs where it is
    for (int part = 0; part < parts; ++part) call(context, part);
    return;
  }
  static Pool pool;
  pool.run(parts, call, context);
}

std::atomic<ParallelRunner> the_runner{&run_on_pool};

}  // namespace

void set_parallel_runner(ParallelRunner runner) {
  the_runner = runner != nullptr ? runner : &run_on_pool;
}

ParallelRunner parallel_runner() {
  return the_runner;
}

}  // namespace poros
