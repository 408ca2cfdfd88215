// SPDX-License-Identifier: Apache-2.0
// What may not change a bit of a CPU kernel: the number of threads, and who runs them.
#include <atomic>
#include <barrier>
#include <thread>

#include "all_ops.hpp"
#include "kernels/parallel.hpp"

namespace poros {
namespace {

void expect_equal_bits(const std::vector<test::Output>& a, const std::vector<test::Output>& b) {
  ASSERT_EQ(a.size(), b.size());
  ASSERT_GT(a.size(), 100U);
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].name, b[i].name);
    EXPECT_TRUE(a[i].values.bytes() == b[i].values.bytes()) << a[i].name;
  }
}

TEST(KernelBits, DoNotDependOnTheNumberOfThreads) {
  test::HostMemory memory;
  const auto one = test::run_all_ops({.threads = 1}, memory);
  for (const int threads : {2, 5}) {
    SCOPED_TRACE(threads);
    expect_equal_bits(one, test::run_all_ops({.threads = threads}, memory));
  }
}

std::atomic<int> parts_run{0};

void run_backwards(int parts, void (*call)(void*, int), void* context) {
  for (int part = parts - 1; part >= 0; --part) {
    call(context, part);
    ++parts_run;
  }
}

TEST(KernelBits, AnotherRunnerGivesTheSame) {
  test::HostMemory memory;
  const auto pool = test::run_all_ops({.threads = 3}, memory);
  set_parallel_runner(run_backwards);
  const auto other = test::run_all_ops({.threads = 3}, memory);
  set_parallel_runner(nullptr);
  expect_equal_bits(pool, other);
  EXPECT_GT(parts_run, 0);
}

TEST(Parallel, CoversEachIndexOnce) {
  for (const std::int64_t count : {0, 1, 7, 1000}) {
    for (const int threads : {0, 1, 3, 64}) {
      std::vector<std::atomic<int>> visits(static_cast<std::size_t>(count));
      parallel_for(threads, count, 2, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
      });
      for (const auto& visit : visits) EXPECT_EQ(visit, 1);
    }
  }
}

TEST(Parallel, ALoopInsideThePartOfTheCallingThread) {
  // The barrier makes sure that the caller itself runs one of the two parts.
  std::barrier both(2);
  std::atomic<std::int64_t> sum{0};
  parallel_for(2, 2, 1, [&](std::int64_t, std::int64_t) {
    both.arrive_and_wait();
    parallel_for(2, 10, 1, [&](std::int64_t from, std::int64_t to) { sum += to - from; });
  });
  EXPECT_EQ(sum, 2 * 10);
}

TEST(Parallel, LoopsInsideLoopsAndFromSeveralThreads) {
  std::atomic<std::int64_t> sum{0};
  const auto work = [&] {
    for (int round = 0; round < 200; ++round) {
      parallel_for(4, 8, 1, [&](std::int64_t begin, std::int64_t end) {
        parallel_for(4, end - begin, 1,
                     [&](std::int64_t from, std::int64_t to) { sum += to - from; });
      });
    }
  };
  std::thread other(work);
  work();
  other.join();
  EXPECT_EQ(sum, 2 * 200 * 8);
}

}  // namespace
}  // namespace poros
