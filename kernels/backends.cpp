// SPDX-License-Identifier: Apache-2.0
#include "kernels/backends.hpp"

namespace poros {

CudaKernels& cuda_kernels() {
  static CudaKernels table;
  return table;
}

}  // namespace poros
