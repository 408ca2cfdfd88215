// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

namespace poros {

/// Calls task(0) .. task(count - 1), each once, on up to `threads` threads (0: one a core). The
/// first exception ends the work and is thrown here.
void run_tasks(std::int64_t count, int threads, const std::function<void(std::int64_t)>& task);

}  // namespace poros
