// SPDX-License-Identifier: Apache-2.0
// x^T p: a thread block takes 64 columns of x and all of the rows. Each of its 8 warps sums up one
// group of 512 rows at a time, through a ring of its own in shared memory; then the block adds up
// the groups in ascending order. Nothing is left to be joined in device memory.
#include <algorithm>

#include "kernels/cuda_backend.hpp"
#include "kernels/matrix_unit.cuh"

namespace poros::cuda {
namespace {

constexpr int kWarps = kThreads / kWarp;
constexpr int kColumns = 64;   // of a block: 128 bytes of a row
constexpr int kSlab = 16;      // rows of a stage
constexpr int kMostRank = 64;  // of one block; wider parts are cut
constexpr int kMostPieces = 2 * kLowRankParts;
constexpr int kJoined = 16;  // columns of p whose sums are joined at a time
constexpr int kPitch = kJoined + 1;

/// A part, or 64 columns of its thin side.
struct Piece {
  const Bf* x;
  const Bf* p;
  float* c;
  std::int64_t x_stride, p_stride, row, column;
  int width, rank;
  int first_block;  // of the launch
  float scale;
};
struct Outer {
  Piece pieces[kMostPieces];
  std::int64_t rows;
  int count;
};

/// Bytes from row to row of p in a stage: 16 more than p's own put 8 rows into different banks. At
/// 128 bytes the rows' 16-byte columns are swapped instead, as x's are.
__host__ __device__ constexpr int thin_pitch(int rank) {
  return rank == kMostRank ? 128 : rank * 2 + 16;
}
__host__ __device__ constexpr int stage_bytes(int rank) {
  return kSlab * (kColumns * 2 + thin_pitch(rank));
}

/// Adds up the warps' sums of the groups from `set` on; thread t has the elements t + kThreads * e
/// of each kJoined columns.
template <int Tiles>
__device__ __forceinline__ void join(float* of_warp, const float (&sum)[4][Tiles][4],
                                     const Piece& piece, int groups, float (&total)[Tiles / 2][4]) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int pair = 0; pair < Tiles / 2; ++pair) {
    if (pair * kJoined >= piece.rank) break;
    __syncthreads();
#pragma unroll
    for (int m = 0; m < 4; ++m) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int column = m * 16 + lane / 4 + i / 2 % 2 * 8;
        const int j = i / 4 * 8 + 2 * (lane % 4) + i % 2;
        of_warp[(warp * kColumns + column) * kPitch + j] = sum[m][2 * pair + i / 4][i % 4];
      }
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int at = static_cast<int>(threadIdx.x) + kThreads * e;
      const bool by_row = piece.column == 1;
      const int m = by_row ? at / kJoined : at % kColumns;
      const int j = by_row ? at % kJoined : at / kColumns;
      for (int group = 0; group < groups; ++group) {
        total[pair][e] += of_warp[(group * kColumns + m) * kPitch + j];
      }
    }
  }
}

template <int Tiles, int Stages>
__global__ void __launch_bounds__(kThreads, Tiles <= 4 ? 2 : 1)
    outer_kernel(const __grid_constant__ Outer op) {
  extern __shared__ __align__(128) char shared[];
  int index = 0;
  while (index + 1 < op.count && static_cast<int>(blockIdx.x) >= op.pieces[index + 1].first_block) {
    ++index;
  }
  const Piece& piece = op.pieces[index];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int column = (static_cast<int>(blockIdx.x) - piece.first_block) * kColumns;
  const int tiles = piece.rank / 8;
  const int pitch = thin_pitch(piece.rank);
  const int swap = pitch == 128 ? 7 : 0;
  char* ring = shared + warp * Stages * stage_bytes(piece.rank);
  const auto x_at = [&](int stage, int row, int c) {
    return ring + stage * stage_bytes(piece.rank) + row * kColumns * 2 + (c ^ (row & 7)) * 16;
  };
  const auto p_at = [&](int stage, int row, int c) {
    return ring + stage * stage_bytes(piece.rank) + kSlab * kColumns * 2 + row * pitch +
           (c ^ (row & swap)) * 16;
  };
  const auto groups = static_cast<int>((op.rows + kLowRankGroup - 1) / kLowRankGroup);

  float total[Tiles / 2][4] = {};
  for (int set = 0; set < groups; set += kWarps) {
    const std::int64_t first = static_cast<std::int64_t>(set + warp) * kLowRankGroup;
    const auto slabs =
        static_cast<int>(max(min(op.rows - first, kLowRankGroup), std::int64_t{0})) / kSlab;
    const auto fetch = [&](int i) {
      if (i < slabs) {
        const int stage = i % Stages;
        const Bf* x = piece.x + (first + i * kSlab) * piece.x_stride;
        const int c = column + lane % 8 * 8;
        const bool there = c < piece.width;
#pragma unroll
        for (int r = 0; r < kSlab; r += 4) {
          const int row = r + lane / 8;
          copy_16(x_at(stage, row, lane % 8), x + row * piece.x_stride + (there ? c : 0), there);
        }
        const Bf* p = piece.p + (first + i * kSlab) * piece.p_stride;
        for (int at = lane; at < kSlab * tiles; at += kWarp) {
          const int row = at / tiles, n = at % tiles;
          copy_16(p_at(stage, row, n), p + row * piece.p_stride + n * 8, true);
        }
      }
      end_of_copies();
    };

    float sum[4][Tiles][4] = {};
    for (int i = 0; i < Stages - 1; ++i) fetch(i);
    for (int i = 0; i < slabs; ++i) {
      wait_for_copies<Stages - 2>();
      __syncwarp();
      fetch(i + Stages - 1);
      const int stage = i % Stages;
      unsigned b[Tiles][2];
#pragma unroll
      for (int n = 0; n < Tiles; ++n) {
        if (n >= tiles) break;
        load_transposed(b[n], p_at(stage, lane % 16, n));
      }
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        // Columns +0 and +8 of rows 0..7, then of rows 8..15.
        unsigned a[4];
        load_transposed(a, x_at(stage, lane / 16 * 8 + lane % 8, 2 * m + lane / 8 % 2));
#pragma unroll
        for (int n = 0; n < Tiles; ++n) {
          if (n >= tiles) break;
          multiply_add(sum[m][n], a[0], a[1], a[2], a[3], b[n][0], b[n][1]);
        }
      }
    }
    wait_for_copies<0>();
    join<Tiles>(reinterpret_cast<float*>(shared), sum, piece, min(groups - set, kWarps), total);
    __syncthreads();  // the rings are free again
  }
#pragma unroll
  for (int pair = 0; pair < Tiles / 2; ++pair) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int at = static_cast<int>(threadIdx.x) + kThreads * e;
      const bool by_row = piece.column == 1;
      const int m = by_row ? at / kJoined : at % kColumns;
      const int j = pair * kJoined + (by_row ? at % kJoined : at / kColumns);
      if (j >= piece.rank || column + m >= piece.width) continue;
      piece.c[(column + m) * piece.row + j * piece.column] += piece.scale * total[pair][e];
    }
  }
}

}  // namespace

void low_rank_outer(const Stream& stream, const LowRankOuter& op) {
  const char* name = "low_rank_outer";
  if (op.dtype != DType::bf16) throw_unsupported(name, "only bf16 operands");
  Outer made{};
  made.rows = op.rows;
  int blocks = 0;
  int most_rank = 0;
  for (int i = 0; i < op.count; ++i) {
    const LowRankOuter::Part& part = op.parts[static_cast<std::size_t>(i)];
    const std::int64_t x_stride = stride_or(part.x_stride, part.width);
    const std::int64_t p_stride = stride_or(part.p_stride, part.rank);
    if (!aligned({part.x, part.p}) || !multiples(8, {x_stride, p_stride})) {
      throw_unsupported(name, "operands must be aligned to 16 bytes");
    }
    for (std::int64_t first = 0; first < part.rank; first += kMostRank) {
      const auto rank = static_cast<int>(std::min<std::int64_t>(kMostRank, part.rank - first));
      made.pieces[made.count++] = {static_cast<const Bf*>(part.x),
                                   static_cast<const Bf*>(part.p) + first,
                                   part.c + first * part.column,
                                   x_stride,
                                   p_stride,
                                   part.row,
                                   part.column,
                                   static_cast<int>(part.width),
                                   rank,
                                   blocks,
                                   part.scale};
      blocks += static_cast<int>((part.width + kColumns - 1) / kColumns);
      most_rank = std::max(most_rank, rank);
    }
  }
  const int stages = most_rank <= 16 ? 4 : 3;
  const auto kernel = most_rank <= 16   ? outer_kernel<2, 4>
                      : most_rank <= 32 ? outer_kernel<4, 3>
                      : most_rank <= 48 ? outer_kernel<6, 3>
                                        : outer_kernel<8, 3>;
  const auto shared = std::max(static_cast<std::size_t>(kWarps * stages * stage_bytes(most_rank)),
                               std::size_t{kWarps} * kColumns * kPitch * sizeof(float));
  allow_shared(name, kernel, shared);
  kernel<<<static_cast<unsigned>(blocks), kThreads, shared, stream_of(stream)>>>(made);
  POROS_CUDA_LAUNCHED(name);
}

}  // namespace poros::cuda
