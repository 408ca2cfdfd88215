// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/backends.hpp"
#include "kernels/parallel.hpp"

namespace poros::cpu {

void dequantise(const Stream& stream, const Dequantise& op) {
  // Ranges of whole nested blocks, so that each thread decodes an absmax of its own.
  constexpr std::int64_t kRange = kNf4Block * kNf4NestedBlock;
  const std::int64_t ranges = (op.count + kRange - 1) / kRange;
  parallel_for(stream.threads, ranges, 2, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t first = begin * kRange;
    const std::int64_t count = std::min(op.count, end * kRange) - first;
    if (op.dtype == DType::f32) {
      nf4_dequantise_fp32(op.tensor, first, count, static_cast<float*>(op.out) + first);
    } else {
      nf4_dequantise_bf16(op.tensor, first, count, static_cast<Bf16*>(op.out) + first);
    }
  });
}

}  // namespace poros::cpu
