// SPDX-License-Identifier: Apache-2.0
// NF4 weights to the compute dtype on the stream's device: the operand of the next GEMM.
// The same arithmetic as kernels/nf4.hpp, bit for bit, on both devices.
#pragma once

#include <cstdint>

#include "kernels/device.hpp"
#include "kernels/dtype.hpp"
#include "kernels/low_rank.hpp"
#include "kernels/nf4.hpp"

namespace poros {

/// Decodes all `count` values of `tensor` (pointers in memory of the stream's device) to `out`, f32
/// or bf16: contiguous, or with `cols` given as rows of `cols` values that lie `out_stride`
/// elements apart (multiples of 8), so that columns of something else find room between them. On
/// CUDA codes and out must be aligned to 16 bytes.
///
/// What LoRA's products want around a weight is written in the same launch: `columns`, with cols
/// given, into the room behind the rows; or `below_count` values of dtype from `below`, without
/// cols, right behind the last row.
struct Dequantise {
  Nf4View tensor = {};
  std::int64_t count = 0;
  void* out = nullptr;
  DType dtype = DType::bf16;
  std::int64_t cols = 0, out_stride = 0;
  LowRankColumns columns = {};  // rows 0: none
  const void* below = nullptr;
  std::int64_t below_count = 0;
};
void dequantise(const Stream& stream, const Dequantise& op);

}  // namespace poros
