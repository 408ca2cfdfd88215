// SPDX-License-Identifier: Apache-2.0
// Thin products on the matrix unit (mma.m16n8k16, bf16 in, fp32 sums), each reading its wide
// operand once, through a ring of stages in shared memory. Both cut the sum into parts; the last
// thread block to end with a tile, told by a counter, adds the parts up in ascending order: a
// counter decides who adds, never what.
#include "kernels/cuda_backend.hpp"
#include "kernels/cuda_common.cuh"
#include "kernels/low_rank_shape.hpp"

namespace poros::cuda {
namespace {

constexpr int kBlock = 128;               // threads: four warps
constexpr int kStages = 3;                // of the ring
constexpr int kStageWidth = 64;           // columns of a stage: 128 bytes of a row
constexpr int kPieces = kStageWidth / 8;  // of 16 bytes

__device__ __forceinline__ void multiply_add(float (&c)[4], const unsigned (&a)[4],
                                             const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ unsigned shared_address(const void* at) {
  return static_cast<unsigned>(__cvta_generic_to_shared(at));
}

/// Copies 16 bytes in the background, or zeros.
__device__ __forceinline__ void copy_16(void* to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)),
               "l"(from), "r"(there ? 16 : 0));
}
__device__ __forceinline__ void end_of_copies() {
  asm volatile("cp.async.commit_group;\n");
}
/// Waits for the oldest stage in flight.
__device__ __forceinline__ void wait_for_stage() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kStages - 2));
  __syncthreads();
}

/// Matrices of 8 rows of 16 bytes as the matrix unit takes them, or transposed; lane i gives the
/// address of row i.
__device__ __forceinline__ void load_matrices(unsigned (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row)));
}
__device__ __forceinline__ void load_matrices(unsigned (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];\n"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row)));
}
__device__ __forceinline__ void load_transposed(unsigned (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row)));
}
__device__ __forceinline__ void load_transposed(unsigned (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];\n"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row)));
}

/// Rows of 64 columns in shared memory, their pieces swapped so that the 8 rows that one matrix
/// takes lie in different banks.
struct Tile {
  char* at;
  __device__ char* piece(int row, int index) const {
    return at + row * kStageWidth * 2 + (index ^ (row & 7)) * 16;
  }
};

/// Rows [0, rows) of a matrix, columns [column, column + 64), zeros from column `end` on.
__device__ __forceinline__ void fetch(const Tile& tile, const Bf* from, std::int64_t stride,
                                      int rows, int column, int end) {
  for (int i = static_cast<int>(threadIdx.x); i < rows * kPieces; i += kBlock) {
    const int row = i / kPieces, piece = i % kPieces;
    const bool there = column + piece * 8 < end;
    copy_16(tile.piece(row, piece), from + row * stride + (there ? column + piece * 8 : 0), there);
  }
}

/// Writes the sums of a warp's 16 rows to a matrix of `rank` columns.
template <int Tiles>
__device__ __forceinline__ void store_sums(float* to, int rank, const float (&sum)[Tiles][4]) {
#pragma unroll
  for (int n = 0; n < Tiles; ++n) {
    if (n >= rank / 8) break;
    *reinterpret_cast<float2*>(to + 8 * n) = make_float2(sum[n][0], sum[n][1]);
    *reinterpret_cast<float2*>(to + 8 * rank + 8 * n) = make_float2(sum[n][2], sum[n][3]);
  }
}

/// The sums of `count` parts in ascending order, for kAtOnce places of four neighbouring elements
/// each; the loads of 8 parts of all places are on their way together.
constexpr int kAtOnce = 2;
__device__ __forceinline__ void sum_parts(const float* const (&at)[kAtOnce], std::int64_t stride,
                                          int count, float4 (&total)[kAtOnce]) {
  constexpr int kAhead = 8;
#pragma unroll
  for (int k = 0; k < kAtOnce; ++k) total[k] = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  for (int first = 0; first < count; first += kAhead) {
    float4 part[kAhead][kAtOnce];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        part[i][k] = first + i < count && at[k] != nullptr
                         ? __ldcg(reinterpret_cast<const float4*>(at[k] + (first + i) * stride))
                         : make_float4(0.0F, 0.0F, 0.0F, 0.0F);
      }
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        total[k].x += part[i][k].x;
        total[k].y += part[i][k].y;
        total[k].z += part[i][k].z;
        total[k].w += part[i][k].w;
      }
    }
  }
}

/// True in the thread block that is the last of `blocks` to come here with this counter, which is
/// 0 again then. What the others wrote before is visible to it.
__device__ bool is_last(std::int32_t* counter, int blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(counter, 1) == blocks - 1;
    if (last) *counter = 0;
  }
  __syncthreads();
  __threadfence();
  return last;
}

// --- x W^T
// ----------------------------------------------------------------------------------------

struct ProjectPart {
  const Bf* x;
  const Bf* w;
  Bf* y;
  float* partial;  // [splits, rows, rank]
  std::int64_t x_stride, y_stride;
  int width, rank, padded, splits;
  float scale;
};
struct Project {
  ProjectPart parts[kLowRankParts];
  std::int32_t* counters;  // [parts, row tiles]
  std::int64_t rows;
};

template <int Tiles>
__global__ void __launch_bounds__(kBlock) project_kernel(const __grid_constant__ Project op) {
  extern __shared__ __align__(128) char shared[];
  constexpr int kRows = static_cast<int>(kProjectRows);
  const ProjectPart& part = op.parts[blockIdx.z];
  const int split = static_cast<int>(blockIdx.y);
  if (split >= part.splits) return;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) * kRows;
  const Bf* x = part.x + first_row * part.x_stride;
  const int tiles = part.rank / 8;
  const std::int64_t units = part.width / kLowRankWidth;  // the width is cut between these
  const auto begin = static_cast<int>(units * split / part.splits * kLowRankWidth);
  const auto end = static_cast<int>(units * (split + 1) / part.splits * kLowRankWidth);
  const int stages = (end - begin + kStageWidth - 1) / kStageWidth;
  const int stage_bytes = (kRows + part.rank) * kStageWidth * 2;
  const auto x_at = [&](int i) { return Tile{shared + i % kStages * stage_bytes}; };
  const auto w_at = [&](int i) {
    return Tile{shared + i % kStages * stage_bytes + kRows * kStageWidth * 2};
  };
  const auto fetch_stage = [&](int i) {
    if (i < stages) {
      const int column = begin + i * kStageWidth;
      fetch(x_at(i), x, part.x_stride, kRows, column, end);
      fetch(w_at(i), part.w, part.width, part.rank, column, end);
    }
    end_of_copies();
  };

  float sum[Tiles][4] = {};
  for (int i = 0; i < kStages - 1; ++i) fetch_stage(i);
  for (int i = 0; i < stages; ++i) {
    wait_for_stage();
    fetch_stage(i + kStages - 1);
    const Tile of_x = x_at(i), of_w = w_at(i);
#pragma unroll
    for (int k = 0; k < kPieces; k += 2) {
      // Matrices of x: rows +0 and +8 of piece k, then of piece k + 1.
      unsigned a[4];
      load_matrices(a, of_x.piece(warp * 16 + lane % 16, k + lane / 16));
#pragma unroll
      for (int n = 0; n < Tiles; ++n) {
        if (n >= tiles) break;
        unsigned b[2];
        load_matrices(b, of_w.piece(n * 8 + lane % 8, k + lane / 8 % 2));
        multiply_add(sum[n], a, b);
      }
    }
  }

  const std::int64_t row = first_row + warp * 16 + lane / 4;
  store_sums(part.partial + (split * op.rows + row) * part.rank + 2 * (lane % 4), part.rank, sum);
  if (!is_last(op.counters + blockIdx.z * gridDim.x + blockIdx.x, part.splits)) return;
  const int quads = part.padded / 4;
  for (int base = static_cast<int>(threadIdx.x); base < kRows * quads; base += kBlock * kAtOnce) {
    const float* from[kAtOnce];
    float4 total[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int at = base + k * kBlock, j = 4 * (at % quads);
      const bool there = at < kRows * quads && j < part.rank;
      from[k] = there ? part.partial + (first_row + at / quads) * part.rank + j : nullptr;
    }
    sum_parts(from, op.rows * part.rank, part.splits, total);
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int at = base + k * kBlock;
      if (at >= kRows * quads) continue;
      Pack<Bf, 4> out;
      out.v[0] = stored<Bf>(part.scale * total[k].x);
      out.v[1] = stored<Bf>(part.scale * total[k].y);
      out.v[2] = stored<Bf>(part.scale * total[k].z);
      out.v[3] = stored<Bf>(part.scale * total[k].w);
      store_pack(part.y + (first_row + at / quads) * part.y_stride + 4 * (at % quads), out);
    }
  }
}

// --- x^T p
// ----------------------------------------------------------------------------------------

struct OuterPart {
  const Bf* x;
  const Bf* p;
  float* c;
  std::int64_t x_stride, p_stride, row, column;
  int width, rank;
  int first_tile;  // of the launch
  float* partial;  // [tiles, groups, kOuterTile, rank]
  float scale;
};
struct Outer {
  OuterPart parts[kLowRankParts];
  std::int32_t* counters;  // [tiles]
  std::int64_t rows;
  int count;
};

static_assert(kOuterTile == kStageWidth);

/// Rows of p in a stage are 16 bytes longer than p's, so that 8 of them lie in different banks.
struct Thin {
  char* at;
  int pitch;
  __device__ char* piece(int row, int index) const { return at + row * pitch + index * 16; }
};

/// Rows of a stage: fewer where p is wide.
__host__ __device__ constexpr int outer_stage_rows(int most_rank) {
  return most_rank <= 48 ? 64 : 32;
}

template <int Tiles>
__global__ void __launch_bounds__(kBlock) outer_kernel(const __grid_constant__ Outer op) {
  extern __shared__ __align__(128) char shared[];
  constexpr int kRows = outer_stage_rows(Tiles * 8);
  int index = 0;
  while (index + 1 < op.count && static_cast<int>(blockIdx.x) >= op.parts[index + 1].first_tile) {
    ++index;
  }
  const OuterPart& part = op.parts[index];
  const int tile = static_cast<int>(blockIdx.x) - part.first_tile;
  const int column = tile * kStageWidth;
  const int pitch = part.rank * 2 + 16;
  const int stage_bytes = kRows * (kStageWidth * 2 + pitch);
  const auto x_at = [&](int i) { return Tile{shared + i % kStages * stage_bytes}; };
  const auto p_at = [&](int i) {
    return Thin{shared + i % kStages * stage_bytes + kRows * kStageWidth * 2, pitch};
  };
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * kOuterGroup;
  const auto rows = static_cast<int>(op.rows - first < kOuterGroup ? op.rows - first : kOuterGroup);
  const int stages = rows / kRows;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int tiles = part.rank / 8;
  const auto fetch_stage = [&](int i) {
    if (i < stages) {
      const std::int64_t row = first + i * kRows;
      fetch(x_at(i), part.x + row * part.x_stride, part.x_stride, kRows, column, part.width);
      const Thin to = p_at(i);
      for (int at = static_cast<int>(threadIdx.x); at < kRows * tiles; at += kBlock) {
        const int r = at / tiles, piece = at % tiles;
        copy_16(to.piece(r, piece), part.p + (row + r) * part.p_stride + piece * 8, true);
      }
    }
    end_of_copies();
  };

  float sum[Tiles][4] = {};
  for (int i = 0; i < kStages - 1; ++i) fetch_stage(i);
  for (int i = 0; i < stages; ++i) {
    wait_for_stage();
    fetch_stage(i + kStages - 1);
    const Tile of_x = x_at(i);
    const Thin of_p = p_at(i);
#pragma unroll
    for (int k = 0; k < kRows; k += 16) {
      // Matrices of x: columns +0 and +8 of rows k..k+7, then of rows k+8..k+15.
      unsigned a[4];
      load_transposed(a, of_x.piece(k + lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2));
#pragma unroll
      for (int n = 0; n < Tiles; ++n) {
        if (n >= tiles) break;
        unsigned b[2];
        load_transposed(b, of_p.piece(k + lane % 16, n));
        multiply_add(sum[n], a, b);
      }
    }
  }

  const int groups = static_cast<int>(gridDim.y);
  float* of_tile = part.partial + static_cast<std::int64_t>(tile) * groups * kOuterTile * part.rank;
  const int own = static_cast<int>(blockIdx.y) * kStageWidth + warp * 16 + lane / 4;
  store_sums(of_tile + static_cast<std::int64_t>(own) * part.rank + 2 * (lane % 4), part.rank, sum);
  if (!is_last(op.counters + blockIdx.x, groups)) return;
  const int quads = part.rank / 4;
  // Neighbouring threads write neighbouring elements, whichever way c lies.
  const bool by_row = part.column == 1;
  for (int base = static_cast<int>(threadIdx.x); base < kStageWidth * quads;
       base += kBlock * kAtOnce) {
    int m[kAtOnce], j[kAtOnce];
    const float* from[kAtOnce];
    float4 total[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int at = base + k * kBlock;
      m[k] = by_row ? at / quads : at % kStageWidth;
      j[k] = 4 * (by_row ? at % quads : at / kStageWidth);
      const bool there = at < kStageWidth * quads && column + m[k] < part.width;
      from[k] = there ? of_tile + static_cast<std::int64_t>(m[k]) * part.rank + j[k] : nullptr;
    }
    sum_parts(from, std::int64_t{kStageWidth} * part.rank, groups, total);
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (from[k] == nullptr) continue;
      float* to = part.c + (column + m[k]) * part.row + j[k] * part.column;
      to[0] += part.scale * total[k].x;
      to[part.column] += part.scale * total[k].y;
      to[2 * part.column] += part.scale * total[k].z;
      to[3 * part.column] += part.scale * total[k].w;
    }
  }
}

// --- forms of B
// -----------------------------------------------------------------------------------

template <typename T>
__global__ void __launch_bounds__(kThreads)
    transpose_kernel(const float* x, T* y, const std::int64_t* list) {
  const std::int64_t offset = list[3 * blockIdx.y], out = list[3 * blockIdx.y + 1];
  const auto rank = static_cast<int>(list[3 * blockIdx.y + 2]);
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= out) return;
  for (int j = 0; j < rank; ++j) {
    y[offset + j * out + i] = stored<T>(x[offset + i * rank + j]);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    columns_kernel(const T* b, T* y, std::int64_t rows, int rank, int first, int padded,
                   std::int64_t y_stride, bool turned, float scale) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= rows) return;
  T* to = y + row * y_stride;
  for (int begin = 0; begin < padded; begin += 8) {
    Pack<T, 8> pack;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int j = begin + i - first;
      float value = 0.0F;
      if (j >= 0 && j < rank) {
        value = scale * value_of(b[turned ? j * rows + row : row * rank + j]);
      }
      pack.v[i] = stored<T>(value);
    }
    store_pack(to + begin, pack);
  }
}

unsigned blocks_for(std::int64_t items) {
  return static_cast<unsigned>((items + kThreads - 1) / kThreads);
}

/// Launches with that much shared memory; more than 48 KB are given only when they were asked for.
template <typename Op>
void launch(const char* name, void (*kernel)(Op), dim3 grid, std::size_t shared,
            const Stream& stream, const Op& op) {
  if (shared > std::size_t{48} * 1024) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    if (error != cudaSuccess) {
      throw_cuda_error(name, cudaGetErrorName(error), cudaGetErrorString(error), __FILE__,
                       __LINE__);
    }
  }
  kernel<<<grid, kBlock, shared, stream_of(stream)>>>(op);
  POROS_CUDA_LAUNCHED(name);
}

void require_form(const char* name, DType dtype, bool is_aligned) {
  if (dtype != DType::bf16) throw_unsupported(name, "only bf16 operands");
  if (!is_aligned) throw_unsupported(name, "operands must be aligned to 16 bytes");
}

}  // namespace

void low_rank_project(const Stream& stream, const LowRankProject& op) {
  const char* name = "low_rank_project";
  Project made{};
  made.counters = op.counters;
  made.rows = op.rows;
  auto* workspace = static_cast<float*>(op.workspace);
  int most_rank = 0, most_splits = 1;
  for (int i = 0; i < op.count; ++i) {
    const LowRankProject::Part& part = op.parts[static_cast<std::size_t>(i)];
    require_form(name, op.dtype,
                 aligned({part.x, part.w, part.y}) && multiples(8, {part.x_stride, part.y_stride}));
    const auto splits = static_cast<int>(project_splits(op.rows, part.width, part.rank));
    made.parts[i] = {static_cast<const Bf*>(part.x),
                     static_cast<const Bf*>(part.w),
                     static_cast<Bf*>(part.y),
                     workspace,
                     part.x_stride,
                     part.y_stride,
                     static_cast<int>(part.width),
                     static_cast<int>(part.rank),
                     static_cast<int>(part.padded),
                     splits,
                     part.scale};
    workspace += splits * op.rows * part.rank;
    most_splits = splits > most_splits ? splits : most_splits;
    most_rank = part.rank > most_rank ? static_cast<int>(part.rank) : most_rank;
  }
  const dim3 grid(static_cast<unsigned>(op.rows / kProjectRows), static_cast<unsigned>(most_splits),
                  static_cast<unsigned>(op.count));
  const std::size_t shared = static_cast<std::size_t>(kStages) * kStageWidth * 2 *
                             static_cast<std::size_t>(kProjectRows + most_rank);
  launch(name,
         most_rank <= 16   ? project_kernel<2>
         : most_rank <= 48 ? project_kernel<6>
                           : project_kernel<16>,
         grid, shared, stream, made);
}

void low_rank_outer(const Stream& stream, const LowRankOuter& op) {
  const char* name = "low_rank_outer";
  Outer made{};
  made.counters = op.counters;
  made.rows = op.rows;
  made.count = op.count;
  auto* workspace = static_cast<float*>(op.workspace);
  const std::int64_t groups = outer_groups(op.rows);
  int tiles = 0, most_rank = 0;
  for (int i = 0; i < op.count; ++i) {
    const LowRankOuter::Part& part = op.parts[static_cast<std::size_t>(i)];
    require_form(name, op.dtype,
                 aligned({part.x, part.p}) && multiples(8, {part.x_stride, part.p_stride}));
    made.parts[i] = {static_cast<const Bf*>(part.x),
                     static_cast<const Bf*>(part.p),
                     part.c,
                     part.x_stride,
                     part.p_stride,
                     part.row,
                     part.column,
                     static_cast<int>(part.width),
                     static_cast<int>(part.rank),
                     tiles,
                     workspace,
                     part.scale};
    const std::int64_t of_part = (part.width + kOuterTile - 1) / kOuterTile;
    workspace += of_part * groups * kOuterTile * part.rank;
    tiles += static_cast<int>(of_part);
    most_rank = part.rank > most_rank ? static_cast<int>(part.rank) : most_rank;
  }
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(groups));
  const std::size_t shared = static_cast<std::size_t>(kStages * outer_stage_rows(most_rank)) *
                             static_cast<std::size_t>(kStageWidth * 2 + most_rank * 2 + 16);
  launch(name,
         most_rank <= 16   ? outer_kernel<2>
         : most_rank <= 48 ? outer_kernel<6>
                           : outer_kernel<16>,
         grid, shared, stream, made);
}

void low_rank_transpose(const Stream& stream, const LowRankTranspose& op) {
  const dim3 grid(blocks_for(op.most_out), static_cast<unsigned>(op.count));
  if (op.dtype == DType::bf16) {
    transpose_kernel<Bf>
        <<<grid, kThreads, 0, stream_of(stream)>>>(op.x, static_cast<Bf*>(op.y), op.list);
  } else {
    transpose_kernel<float>
        <<<grid, kThreads, 0, stream_of(stream)>>>(op.x, static_cast<float*>(op.y), op.list);
  }
  POROS_CUDA_LAUNCHED("low_rank_transpose");
}

void low_rank_columns(const Stream& stream, const LowRankColumns& op) {
  const char* name = "low_rank_columns";
  if (!aligned({op.y}) || !multiples(8, {op.padded, op.y_stride})) {
    throw_unsupported(name, "columns must be aligned to 16 bytes");
  }
  const auto write = [&](auto* y, const auto* b) {
    columns_kernel<<<blocks_for(op.rows), kThreads, 0, stream_of(stream)>>>(
        b, y, op.rows, static_cast<int>(op.rank), static_cast<int>(op.first),
        static_cast<int>(op.padded), op.y_stride, op.turned, op.scale);
  };
  if (op.dtype == DType::bf16) {
    write(static_cast<Bf*>(op.y), static_cast<const Bf*>(op.b));
  } else {
    write(static_cast<float*>(op.y), static_cast<const float*>(op.b));
  }
  POROS_CUDA_LAUNCHED(name);
}

}  // namespace poros::cuda
