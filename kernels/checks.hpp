// SPDX-License-Identifier: Apache-2.0
// Checks and dispatch shared by the ops' .cpp files. Internal to kernels/.
#pragma once

#include <cstdint>

#include "base/error.hpp"
#include "kernels/backends.hpp"

namespace poros {

/// Throws Error(Fault::run) naming the op when an operand is not as the header asks.
inline void require(const char* op, bool holds, const char* what) {
  if (!holds) fail(Fault::run, "kernel {}: {}", op, what);
}

/// Activations are f32 or bf16.
inline void require_activation(const char* op, DType dtype) {
  if (dtype != DType::f32 && dtype != DType::bf16) {
    fail(Fault::run, "kernel {}: dtype {} is not supported here, only f32 and bf16", op,
         name_of(dtype));
  }
}

/// A row stride: 0 means contiguous rows of `width`; one below the width would overlap rows.
inline void require_stride(const char* op, std::int64_t stride, std::int64_t width) {
  if (stride != 0 && stride < width) {
    fail(Fault::run, "kernel {}: row stride {} is below the row width {}", op, stride, width);
  }
}

/// Runs the op on the stream's device; a device without code for it throws and names the op.
template <typename... Args>
void dispatch(const char* name, const Stream& stream, void (*on_cpu)(const Stream&, Args...),
              void (*on_cuda)(const Stream&, Args...), Args... args) {
  switch (stream.device) {
    case DeviceKind::cpu:
      on_cpu(stream, args...);
      return;
    case DeviceKind::cuda:
      if (on_cuda == nullptr) {
        fail(Fault::environment,
             "kernel {}: this program has no device code registered for CUDA; build with a CUDA "
             "toolkit and call register_cuda_kernels() first",
             name);
      }
      on_cuda(stream, args...);
      return;
  }
  fail(Fault::run, "kernel {}: unknown device {}", name, static_cast<int>(stream.device));
}

}  // namespace poros
