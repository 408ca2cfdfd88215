// SPDX-License-Identifier: Apache-2.0
// x W^T: a thread block takes 32 rows and all of the width, so that nothing is left to be joined in
// device memory. Its 8 warps share the width in slices of 64 columns, slice s to warp s % 8; each
// warp runs a ring of slices of its own in shared memory and waits for no other until all add up
// their sums, in the order of the warps. W is small and comes from the L2 cache into registers.
#include <algorithm>

#include "kernels/cuda_backend.hpp"
#include "kernels/matrix_unit.cuh"

namespace poros::cuda {
namespace {

constexpr int kWarps = kThreads / kWarp;
constexpr int kRows = 32;
constexpr int kSlice = 64;                       // columns: 128 bytes of a row
constexpr int kStages = 3;                       // of a warp's ring
constexpr int kStageBytes = kRows * kSlice * 2;  // 96 KiB a block: fits every GPU from 8.0 on
constexpr int kMostRank = 64;                    // of one block; wider parts are cut
constexpr int kMostPieces = 2 * kLowRankParts;

/// A part, or 64 columns of its thin side.
struct Piece {
  const Bf* x;
  const Bf* w;
  Bf* y;
  std::int64_t x_stride, y_stride;
  int width, rank, padded;
  float scale;
};
struct Project {
  Piece pieces[kMostPieces];
};

/// Eight 16-byte columns of a row. Odd rows swap the halves: 8 threads that read four columns of
/// two neighbouring rows then find them in different banks.
__device__ __forceinline__ int place(int row, int column) {
  return row * kSlice * 2 + (column ^ ((row & 1) << 2)) * 16;
}

/// Columns [8q, 8q + 8) of 32 go to two multiplications of 16: which of the unit's 16 a column is
/// does not matter, as long as x and w agree. So every operand is read 16 bytes at a time.
template <int Tiles>
__global__ void __launch_bounds__(kThreads, Tiles <= 4 ? 2 : 1)
    project_kernel(const __grid_constant__ Project op) {
  extern __shared__ __align__(128) char shared[];
  const Piece& piece = op.pieces[blockIdx.y];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int g = lane / 4, q = lane % 4;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) * kRows;
  const Bf* x = piece.x + first_row * piece.x_stride;
  const int tiles = piece.rank / 8;
  const int slices = (piece.width + kSlice - 1) / kSlice;
  const int own = (slices - warp + kWarps - 1) / kWarps;  // slices of this warp
  char* ring = shared + warp * kStages * kStageBytes;

  const auto fetch = [&](int i) {
    if (i < own) {
      char* to = ring + i % kStages * kStageBytes;
      const int column = (warp + i * kWarps) * kSlice + lane % 8 * 8;
      const bool there = column < piece.width;
#pragma unroll
      for (int r = 0; r < kRows; r += 4) {
        const int row = r + lane / 8;
        copy_16(to + place(row, lane % 8), x + row * piece.x_stride + (there ? column : 0), there);
      }
    }
    end_of_copies();
  };
  uint4 next[2][Tiles];
  const auto load_w = [&](int i) {
    const int column = (warp + i * kWarps) * kSlice + 8 * q;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int n = 0; n < Tiles; ++n) {
        next[half][n] = make_uint4(0, 0, 0, 0);
        if (n < tiles && i < own && column + half * 32 < piece.width) {
          next[half][n] = __ldg(reinterpret_cast<const uint4*>(
              piece.w + static_cast<std::int64_t>(8 * n + g) * piece.width + column + half * 32));
        }
      }
    }
  };

  float sum[2][Tiles][4] = {};
  for (int i = 0; i < kStages - 1; ++i) fetch(i);
  load_w(0);
  for (int i = 0; i < own; ++i) {
    wait_for_copies<kStages - 2>();
    __syncwarp();
    fetch(i + kStages - 1);
    uint4 w[2][Tiles];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int n = 0; n < Tiles; ++n) w[half][n] = next[half][n];
    }
    load_w(i + 1);
    const char* stage = ring + i % kStages * kStageBytes;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const int row = m * 16 + g;
        const uint4 low = *reinterpret_cast<const uint4*>(stage + place(row, half * 4 + q));
        const uint4 high = *reinterpret_cast<const uint4*>(stage + place(row + 8, half * 4 + q));
#pragma unroll
        for (int n = 0; n < Tiles; ++n) {
          if (n >= tiles) break;
          multiply_add(sum[m][n], low.x, high.x, low.y, high.y, w[half][n].x, w[half][n].y);
          multiply_add(sum[m][n], low.z, high.z, low.w, high.w, w[half][n].z, w[half][n].w);
        }
      }
    }
  }
  wait_for_copies<0>();
  __syncthreads();

  // The warps' sums [warps, rows, pitch] take the rings' place.
  auto* of_warp = reinterpret_cast<float*>(shared);
  const int pitch = piece.rank + 8;
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int n = 0; n < Tiles; ++n) {
      if (n >= tiles) break;
      float* to = of_warp + (warp * kRows + m * 16 + g) * pitch + 8 * n + 2 * q;
      *reinterpret_cast<float2*>(to) = make_float2(sum[m][n][0], sum[m][n][1]);
      *reinterpret_cast<float2*>(to + 8 * pitch) = make_float2(sum[m][n][2], sum[m][n][3]);
    }
  }
  __syncthreads();
  const int pairs = piece.padded / 2;
  for (int at = static_cast<int>(threadIdx.x); at < kRows * pairs; at += kThreads) {
    const int row = at / pairs, j = 2 * (at % pairs);
    float2 total = make_float2(0.0F, 0.0F);
    if (j < piece.rank) {
#pragma unroll
      for (int from = 0; from < kWarps; ++from) {
        const float2 part =
            *reinterpret_cast<const float2*>(of_warp + (from * kRows + row) * pitch + j);
        total.x += part.x;
        total.y += part.y;
      }
    }
    *reinterpret_cast<__nv_bfloat162*>(piece.y + (first_row + row) * piece.y_stride + j) =
        __floats2bfloat162_rn(piece.scale * total.x, piece.scale * total.y);
  }
}

}  // namespace

void low_rank_project(const Stream& stream, const LowRankProject& op) {
  const char* name = "low_rank_project";
  if (op.dtype != DType::bf16) throw_unsupported(name, "only bf16 operands");
  Project made{};
  unsigned count = 0;
  int most_rank = 0;
  for (int i = 0; i < op.count; ++i) {
    const LowRankProject::Part& part = op.parts[static_cast<std::size_t>(i)];
    const std::int64_t x_stride = stride_or(part.x_stride, part.width);
    const std::int64_t y_stride = stride_or(part.y_stride, part.padded);
    if (!aligned({part.x, part.w, part.y}) || !multiples(8, {x_stride, y_stride})) {
      throw_unsupported(name, "operands must be aligned to 16 bytes");
    }
    for (std::int64_t first = 0; first < part.rank; first += kMostRank) {
      const auto rank = static_cast<int>(std::min<std::int64_t>(kMostRank, part.rank - first));
      const bool last = first + rank == part.rank;
      made.pieces[count++] = {static_cast<const Bf*>(part.x),
                              static_cast<const Bf*>(part.w) + first * part.width,
                              static_cast<Bf*>(part.y) + first,
                              x_stride,
                              y_stride,
                              static_cast<int>(part.width),
                              rank,
                              last ? static_cast<int>(part.padded - first) : rank,
                              part.scale};
      most_rank = std::max(most_rank, rank);
    }
  }
  const auto kernel = most_rank <= 16   ? project_kernel<2>
                      : most_rank <= 32 ? project_kernel<4>
                      : most_rank <= 48 ? project_kernel<6>
                                        : project_kernel<8>;
  constexpr std::size_t kShared = std::size_t{kWarps} * kStages * kStageBytes;
  static_assert(kShared >= std::size_t{kWarps} * kRows * (kMostRank + 8) * sizeof(float));
  allow_shared(name, kernel, kShared);
  kernel<<<dim3(blocks_for(name, op.rows, kRows), count), kThreads, kShared, stream_of(stream)>>>(
      made);
  POROS_CUDA_LAUNCHED(name);
}

}  // namespace poros::cuda
