// SPDX-License-Identifier: Apache-2.0
// Sharing the rows of a CPU kernel among threads. A thread computes its elements wholly and in a
// fixed order, so the number of threads changes no bit.
#pragma once

#include <algorithm>
#include <cstdint>

namespace poros {

/// Calls call(context, part) once for each part 0 .. parts-1, each on some thread, and returns when
/// all are done.
using ParallelRunner = void (*)(int parts, void (*call)(void* context, int part), void* context);

/// The runner of the process: by default a small thread pool that is made on first use. A program
/// with a thread pool of its own puts that here, so that two pools don't fight for the cores.
/// Null restores the default. Not to be called while kernels run.
void set_parallel_runner(ParallelRunner runner);
[[nodiscard]] ParallelRunner parallel_runner();

/// Calls body(begin, end) on disjoint ranges that cover 0 .. count-1, at most `threads` at a time
/// and none smaller than `grain` (but the last). `body` must not throw.
template <typename Body>
void parallel_for(int threads, std::int64_t count, std::int64_t grain, const Body& body) {
  const std::int64_t most =
      (count + std::max<std::int64_t>(grain, 1) - 1) / std::max<std::int64_t>(grain, 1);
  const auto parts = static_cast<int>(std::min<std::int64_t>(std::max(threads, 1), most));
  if (parts <= 1) {
    if (count > 0) body(std::int64_t{0}, count);
    return;
  }
  struct Context {
    const Body& body;
    std::int64_t count;
    int parts;
  } context{body, count, parts};
  parallel_runner()(
      parts,
      [](void* opaque, int part) {
        const auto& c = *static_cast<const Context*>(opaque);
        c.body(c.count * part / c.parts, c.count * (part + 1) / c.parts);
      },
      &context);
}

/// Rows that make a part worth a thread: about 16 Ki elements.
[[nodiscard]] inline std::int64_t row_grain(std::int64_t cols) {
  return std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(cols, 1));
}

}  // namespace poros
