// SPDX-License-Identifier: Apache-2.0
#include "model/workers.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace poros {

void run_tasks(std::int64_t count, int threads, const std::function<void(std::int64_t)>& task) {
  if (threads <= 0) threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  std::atomic<std::int64_t> next{0};
  std::exception_ptr first_error;
  std::mutex mutex;
  const auto work = [&] {
    for (;;) {
      const std::int64_t i = next.fetch_add(1);
      if (i >= count) return;
      try {
        task(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first_error) first_error = std::current_exception();
        next = count;
      }
    }
  };
  std::vector<std::thread> others;
  for (std::int64_t t = 1; t < std::min<std::int64_t>(threads, count); ++t) {
    others.emplace_back(work);
  }
  work();
  for (std::thread& thread : others) thread.join();
  if (first_error) std::rethrow_exception(first_error);
}

}  // namespace poros
