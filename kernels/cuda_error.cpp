// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda_error.hpp"

#include "base/error.hpp"

namespace poros::cuda {

void throw_cuda_error(const char* op, const char* error_name, const char* error_text,
                      const char* file, int line) {
  fail(Fault::run, "kernel {}: CUDA said {} ({}) at {}:{}", op, error_name, error_text, file, line);
}

void throw_unsupported(const char* op, const char* what) {
  fail(Fault::run, "kernel {}: {}", op, what);
}

}  // namespace poros::cuda
