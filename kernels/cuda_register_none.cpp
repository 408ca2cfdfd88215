// SPDX-License-Identifier: Apache-2.0
// Stands for cuda_register.cpp where no CUDA toolkit was found.
#include "kernels/backends.hpp"

namespace poros {

bool register_cuda_kernels() {
  return false;
}

}  // namespace poros
