// SPDX-License-Identifier: Apache-2.0
// Faults of the CUDA runtime as poros::Error, without a CUDA header. Internal to kernels/.
#pragma once

namespace poros::cuda {

/// Throws Error(Fault::run): the op, the failing place, CUDA's name and text of the error.
[[noreturn]] void throw_cuda_error(const char* op, const char* error_name, const char* error_text,
                                   const char* file, int line);
/// Throws Error(Fault::run): the op asks for what its device code cannot do.
[[noreturn]] void throw_unsupported(const char* op, const char* what);

}  // namespace poros::cuda
