// SPDX-License-Identifier: Apache-2.0
// Where a kernel runs. Every op takes a Stream first and works on memory of that device.
#pragma once

#include <cstdint>

namespace poros {

enum class DeviceKind : std::uint8_t { cpu, cuda };

/// An execution place. On CUDA `handle` is a cudaStream_t and the call returns once the work is
/// queued; on the CPU it is unused and the call returns when the work is done.
struct Stream {
  DeviceKind device = DeviceKind::cpu;
  void* handle = nullptr;
  int threads = 1;  // CPU only: how many threads share the rows; never changes a bit of a result
};

}  // namespace poros
