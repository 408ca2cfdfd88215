// SPDX-License-Identifier: Apache-2.0
// Builders of cache entries that were killed left folders of tens of gigabytes, which `cache list`
// did not show and `cache prune` kept for a day.
#include <csignal>
#include <fstream>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "model/nf4_cache.hpp"
#include "model/open_base.hpp"
#include "tests/model/goldens.hpp"

namespace poros {
namespace {

namespace fs = std::filesystem;

std::unique_ptr<BaseStore> build(const fs::path& cache, const BuildProgress& progress = {}) {
  return open_base(test::golden("llama_bf16"), "nf4", cache, progress);
}

/// A child that stops in the middle of a build until it is killed.
pid_t stuck_builder(const fs::path& cache) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  (void)build(cache, [](std::int64_t, std::int64_t) {
    while (true) ::pause();
  });
  ::_exit(1);
}

std::vector<CacheEntryInfo> wait_for_unfinished(const fs::path& cache) {
  for (int i = 0; i < 1000; ++i) {
    auto found = unfinished_builds(cache);
    if (!found.empty() && found[0].bytes > 0) return found;
    ::usleep(10000);
  }
  return {};
}

void make_old(const fs::path& path) {
  const struct timespec old[2] = {{1000000000, 0}, {1000000000, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), old, 0), 0);
}

TEST(AbandonedBuild, IsListedAndRemovedButALiveOneIsNot) {
  const test::TemporaryFolder cache;
  const pid_t child = stuck_builder(cache.path());
  ASSERT_GT(child, 0);
  const auto found = wait_for_unfinished(cache.path());
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].fault, "being built");
  // However long it has written nothing: its process lives.
  make_old(found[0].folder / "base.bin");
  EXPECT_TRUE(prune_cache(cache.path(), -1).empty());
  EXPECT_TRUE(fs::exists(found[0].folder));

  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_NE(unfinished_builds(cache.path()).at(0).fault, "being built");
  (void)build(cache.path());
  EXPECT_FALSE(fs::exists(found[0].folder));
  EXPECT_TRUE(unfinished_builds(cache.path()).empty());
  EXPECT_EQ(list_cache(cache.path()).size(), 1U);
}

TEST(AbandonedBuild, AFreshOneIsLeftToOtherHosts) {
  const test::TemporaryFolder cache;
  const fs::path folder = cache.path() / ".building-0123-abc";
  fs::create_directories(folder);
  std::ofstream(folder / "base.bin") << "begun";
  EXPECT_TRUE(prune_cache(cache.path(), -1).empty());
  make_old(folder / "base.bin");
  ASSERT_EQ(prune_cache(cache.path(), -1).size(), 1U);
  EXPECT_FALSE(fs::exists(folder));
}

}  // namespace
}  // namespace poros
