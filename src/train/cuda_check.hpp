// SPDX-License-Identifier: Apache-2.0
// Every call of the CUDA runtime is checked. Internal to poros_train_cuda.
#pragma once

#include <cuda_runtime_api.h>

#include "base/error.hpp"

namespace poros {

/// @throws Error(Fault::run) naming the call and what CUDA said. The error is taken back, so that a
/// later call doesn't report it again.
inline void check_cuda(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  (void)cudaGetLastError();
  fail(Fault::run, "{}: CUDA said {} ({})", call, cudaGetErrorName(error),
       cudaGetErrorString(error));
}

}  // namespace poros
