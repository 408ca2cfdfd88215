// SPDX-License-Identifier: Apache-2.0
// Versions of what poros-cell computes with.
#pragma once

#include "base/json.hpp"

namespace poros {

/// {poros, libtorch, mkl, openmp, cpu_capability}: as built and as found at run time.
[[nodiscard]] Json library_versions();

/// Version of this project: "0.3.0".
[[nodiscard]] const char* poros_version();

}  // namespace poros
