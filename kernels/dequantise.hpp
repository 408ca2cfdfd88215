// SPDX-License-Identifier: Apache-2.0
// NF4 weights to the compute dtype on the stream's device: the operand of the next GEMM.
// The same arithmetic as kernels/nf4.hpp, bit for bit, on both devices.
#pragma once

#include <cstdint>

#include "kernels/device.hpp"
#include "kernels/dtype.hpp"
#include "kernels/nf4.hpp"

namespace poros {

/// Decodes all `count` values of `tensor` (pointers in memory of the stream's device) to `out`,
/// contiguous, f32 or bf16. On CUDA codes and out must be aligned to 16 bytes.
struct Dequantise {
  Nf4View tensor = {};
  std::int64_t count = 0;
  void* out = nullptr;
  DType dtype = DType::bf16;
};
void dequantise(const Stream& stream, const Dequantise& op);

}  // namespace poros
