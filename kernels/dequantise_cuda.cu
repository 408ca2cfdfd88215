// SPDX-License-Identifier: Apache-2.0
// NF4 to bf16 or fp32, nested absmax decoded on the way. A thread decodes kWords groups of 8 codes;
// neighbouring threads take neighbouring groups, so that a warp reads 128 bytes of codes and writes
// 512 bytes of bf16 with each access (wider reads, whose writes then lie apart, take three times as
// long). The tables lie in shared memory: 16 values in 16 banks, no conflicts. Each rounding is its
// own instruction (__fmul_rn, __fadd_rn), as on the CPU.
#include "kernels/cuda_backend.hpp"
#include "kernels/low_rank_columns.cuh"

namespace poros::cuda {
namespace {

constexpr int kGroup = 8;  // codes in one 32-bit word
constexpr int kWords = 4;  // words a thread has in flight

/// The two tables, passed by value (1088 bytes of the 4 KiB of kernel parameters).
struct Tables {
  float values[16];
  float map8[256];
};

struct Shared {
  float values[16];
  float map8[256];
};

/// Where a group of 8 values goes: rows of `groups` groups lie `stride` elements apart. The
/// quotient by multiplication (Granlund and Montgomery 1994), right for indices below 2^31.
struct Rows {
  std::uint32_t groups = 0;  // 0: contiguous
  std::uint32_t multiplier = 0, shift = 0;
  std::int64_t stride = 0;

  __device__ __forceinline__ std::int64_t place(std::int64_t group) const {
    if (groups == 0) return group * kGroup;
    const auto n = static_cast<std::uint32_t>(group);
    const std::uint32_t row = groups == 1 ? n : __umulhi(n, multiplier) >> shift;
    return row * stride + std::int64_t{n - row * groups} * kGroup;
  }
};

Rows rows_of(const Dequantise& op) {
  Rows rows;
  if (op.cols == 0 || op.cols == op.out_stride) return rows;
  rows.groups = static_cast<std::uint32_t>(op.cols / kGroup);
  rows.stride = op.out_stride;
  std::uint32_t bits = 0;
  while ((std::uint64_t{1} << bits) < rows.groups) ++bits;
  rows.multiplier = static_cast<std::uint32_t>(
      ((std::uint64_t{1} << (31 + bits)) + rows.groups - 1) / rows.groups);
  rows.shift = bits == 0 ? 0 : bits - 1;
  return rows;
}

/// A block's absmax from its 8-bit code: two separate roundings.
__device__ __forceinline__ float decoded(const Shared& shared, unsigned q, float nested,
                                         float offset) {
  return __fadd_rn(__fmul_rn(shared.map8[q], nested), offset);
}

/// Code i of a word: codes follow in memory order, the high nibble of each byte first.
__device__ __forceinline__ unsigned code_of(std::uint32_t word, int i) {
  return word >> ((i ^ 1) * 4) & 0xFU;
}

__device__ __forceinline__ void store_group(float* to, const float (&value)[kGroup]) {
  Pack<float, kGroup> pack;
#pragma unroll
  for (int i = 0; i < kGroup; ++i) pack.v[i] = value[i];
  store_pack(to, pack);
}
/// Pairs are rounded by one instruction.
__device__ __forceinline__ void store_group(Bf* to, const float (&value)[kGroup]) {
  Pack<__nv_bfloat162, kGroup / 2> pack;
#pragma unroll
  for (int i = 0; i < kGroup / 2; ++i) {
    pack.v[i] = __floats2bfloat162_rn(value[2 * i], value[2 * i + 1]);
  }
  store_pack(reinterpret_cast<__nv_bfloat162*>(to), pack);
}

/// Decodes the tile of kThreads * kWords groups that begins at `base`. Guarded: the last tile,
/// where groups may be missing. All loads go out before the first is used.
template <typename T, bool nested, bool guarded>
__device__ __forceinline__ void decode_tile(const Nf4View& tensor, const Shared& shared, T* out,
                                            std::int64_t base, std::int64_t groups,
                                            const Rows& rows) {
  constexpr int kGroupsOfBlock = kNf4Block / kGroup;
  static_assert(kGroupsOfBlock * kNf4NestedBlock % (kThreads * kWords) == 0);  // one nested absmax
  const auto* words = reinterpret_cast<const std::uint32_t*>(tensor.codes);
  std::uint32_t word[kWords];
  std::uint8_t q[kWords];
  float absmax[kWords];
  float of_tile = 0.0F;
  if constexpr (nested) of_tile = tensor.nested_absmax[base / (kGroupsOfBlock * kNf4NestedBlock)];
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    const std::int64_t group = base + w * kThreads + threadIdx.x;
    if (guarded && group >= groups) continue;
    word[w] = __ldcs(words + group);  // read once
    if constexpr (nested) {
      q[w] = tensor.q[group / kGroupsOfBlock];
    } else {
      absmax[w] = tensor.absmax[group / kGroupsOfBlock];
    }
  }
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    const std::int64_t group = base + w * kThreads + threadIdx.x;
    if (guarded && group >= groups) continue;
    if constexpr (nested) absmax[w] = decoded(shared, q[w], of_tile, tensor.offset);
    float value[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      value[i] = __fmul_rn(shared.values[code_of(word[w], i)], absmax[w]);
    }
    store_group(out + rows.place(group), value);
  }
}

/// What goes behind the rows, or below them; done by the first thread blocks.
template <typename T>
struct Around {
  unsigned column_blocks = 0, below_blocks = 0;
  Columns<T> columns = {};
  const T* below = nullptr;
  std::int64_t below_count = 0;
};

/// Packs of 8 where `below` and its place are aligned to 16 bytes.
template <typename T>
__device__ __forceinline__ void copy_below(const Around<T>& around, T* to, unsigned block) {
  const std::int64_t at = (std::int64_t{block} * kThreads + threadIdx.x) * kGroup;
  const bool wide =
      (reinterpret_cast<std::uintptr_t>(around.below) | reinterpret_cast<std::uintptr_t>(to)) %
          16 ==
      0;
  if (wide && at + kGroup <= around.below_count) {
    store_pack(to + at, load_pack<kGroup>(around.below + at));
    return;
  }
  for (std::int64_t i = at; i < at + kGroup && i < around.below_count; ++i) to[i] = around.below[i];
}

/// One tile a thread block: more blocks than fit at once, so that none waits for the slowest.
template <typename T, bool nested>
__global__ void __launch_bounds__(kThreads)
    dequantise_kernel(const Nf4View tensor, T* out, std::int64_t count, const Rows rows,
                      const Around<T> around, const __grid_constant__ Tables tables) {
  if (blockIdx.x < around.column_blocks) {
    write_columns(around.columns, blockIdx.x);
    return;
  }
  if (blockIdx.x - around.column_blocks < around.below_blocks) {
    copy_below(around, out + count, blockIdx.x - around.column_blocks);
    return;
  }
  const unsigned block = blockIdx.x - around.column_blocks - around.below_blocks;
  __shared__ Shared shared;
  static_assert(kThreads == 256);
  if constexpr (nested) shared.map8[threadIdx.x] = tables.map8[threadIdx.x];
  if (threadIdx.x < 16) shared.values[threadIdx.x] = tables.values[threadIdx.x];
  __syncthreads();

  constexpr std::int64_t kTile = std::int64_t{kThreads} * kWords;
  const std::int64_t groups = count / kGroup;
  const std::int64_t base = block * kTile;
  if (base + kTile <= groups) {
    decode_tile<T, nested, false>(tensor, shared, out, base, groups, rows);
  } else {
    decode_tile<T, nested, true>(tensor, shared, out, base, groups, rows);
  }
  // The last codes that fill no word.
  if (block == 0 && threadIdx.x < count % kGroup) {
    const std::int64_t at = groups * kGroup + threadIdx.x;
    const std::int64_t block = at / kNf4Block;
    const unsigned byte = tensor.codes[at / 2];
    const unsigned code = at % 2 == 0 ? byte >> 4 : byte & 0xFU;
    float absmax = 0.0F;
    if constexpr (nested) {
      absmax = decoded(shared, tensor.q[block], tensor.nested_absmax[block / kNf4NestedBlock],
                       tensor.offset);
    } else {
      absmax = tensor.absmax[block];
    }
    out[at] = stored<T>(__fmul_rn(shared.values[code], absmax));
  }
}

const Tables& tables() {
  static const Tables filled = [] {
    Tables t{};
    for (std::size_t i = 0; i < 16; ++i) t.values[i] = nf4_values()[i];
    for (std::size_t i = 0; i < 256; ++i) t.map8[i] = nf4_dynamic_map()[i];
    return t;
  }();
  return filled;
}

template <typename T>
void launch(const Stream& stream, const Dequantise& op) {
  const char* name = "dequantise";
  if (!aligned({op.tensor.codes, op.out})) {
    throw_unsupported(name, "codes and output must be aligned to 16 bytes");
  }
  const std::int64_t per_block = std::int64_t{kThreads} * kWords * kGroup;
  Around<T> around;
  if (op.columns.rows != 0) {
    around.columns = columns_of<T>(name, op.columns);
    around.column_blocks = blocks_of_columns(name, op.columns);
  }
  if (op.below_count != 0) {
    around.below = static_cast<const T*>(op.below);
    around.below_count = op.below_count;
    around.below_blocks = blocks_for(name, op.below_count, std::int64_t{kThreads} * kGroup);
  }
  const auto grid = static_cast<unsigned>((op.count + per_block - 1) / per_block) +
                    around.column_blocks + around.below_blocks;
  T* out = static_cast<T*>(op.out);
  if (op.tensor.absmax == nullptr) {
    dequantise_kernel<T, true><<<grid, kThreads, 0, stream_of(stream)>>>(
        op.tensor, out, op.count, rows_of(op), around, tables());
  } else {
    dequantise_kernel<T, false><<<grid, kThreads, 0, stream_of(stream)>>>(
        op.tensor, out, op.count, rows_of(op), around, tables());
  }
  POROS_CUDA_LAUNCHED(name);
}

}  // namespace

void dequantise(const Stream& stream, const Dequantise& op) {
  op.dtype == DType::f32 ? launch<float>(stream, op) : launch<Bf>(stream, op);
}

}  // namespace poros::cuda
