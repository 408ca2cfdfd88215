// SPDX-License-Identifier: Apache-2.0
// NF4 ("4-bit NormalFloat", Dettmers et al. 2023) as bitsandbytes stores it, byte for byte.
//
// A weight [out, in] is one flat row-major run of n values in blocks of 64; blocks cross rows and
// the last one may be short.
//   absmax_b = max |x| over block b (fp32)
//   y        = x * (1 / absmax_b), both steps rounded to fp32
//   code     = how many of the 15 thresholds are below y (0..15)
//   byte k   = code[2k] << 4 | code[2k + 1]; with odd n the last low nibble is the code of 0.0 (7)
// Double quantisation then stores absmax in 8 bits: with offset = mean(absmax), r = absmax - offset
// is quantised in blocks of 256 by the signed dynamic map (256 values) to the one nearest to
// r * (1 / nested_absmax) (Nf4ScaleRule says how exactly). Decoding rounds each step to fp32,
// without a fused multiply-add:
//   a = map8[q] * nested_absmax;  absmax' = a + offset;  x' = map4[code] * absmax'
// and rounds to bf16 (nearest, ties to even) where bf16 is asked for.
//
// What bitsandbytes leaves open, and what is done here (tests/model/nf4_test.cpp):
//   - A block of zeros: its CPU code writes code 7 (0.0), its CUDA code writes code 0. Here:
//   code 7.
//   - A short last block: its CPU code divides by absmax where everything else multiplies by the
//     reciprocal, so that a value within one rounding of a threshold can get the neighbouring code
//     there. Here: the reciprocal, as on CUDA. A short last block of zeros has absmax 0 here.
//   - The offset is a mean whose order of summing differs between its devices and instruction sets
//     (it is the tensor library's). Here: summed in double precision, in the order of the blocks,
//     rounded once. With the same offset all other bytes are equal.
//   - NaN: never enters absmax, and has code 0. A block with an infinity has absmax infinity: its
//     finite values have code 7, the infinities code 0. (The checkpoint reader refuses both.)
// Results don't depend on the CPU's instruction set nor on how a tensor is cut into runs.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/dtype.hpp"

namespace poros {

inline constexpr std::int64_t kNf4Block = 64;         // values that share an absmax
inline constexpr std::int64_t kNf4NestedBlock = 256;  // absmax values that share a nested absmax

/// The 16 values of NF4, ascending; [0] = -1, [7] = 0, [15] = 1.
[[nodiscard]] std::span<const float, 16> nf4_values();
/// The 15 decision thresholds: the midpoints of neighbouring values, rounded to fp32.
[[nodiscard]] std::span<const float, 15> nf4_thresholds();
/// The 256 values of bitsandbytes' signed dynamic 8-bit map, ascending; [127] = 0, [255] = 1.
[[nodiscard]] std::span<const float, 256> nf4_dynamic_map();

[[nodiscard]] constexpr std::int64_t nf4_code_bytes(std::int64_t n) {
  return (n + 1) / 2;
}
[[nodiscard]] constexpr std::int64_t nf4_blocks(std::int64_t n) {
  return (n + kNf4Block - 1) / kNf4Block;
}
[[nodiscard]] constexpr std::int64_t nf4_nested_blocks(std::int64_t n) {
  return (nf4_blocks(n) + kNf4NestedBlock - 1) / kNf4NestedBlock;
}

/// Quantises a run of n values that begins at a block's first value. Pointers need no alignment.
/// @param codes  nf4_code_bytes(n) bytes
/// @param absmax nf4_blocks(n) values
void nf4_quantise_fp32(const float* x, std::int64_t n, std::uint8_t* codes, float* absmax);
/// The same for bf16 and fp16 values.
void nf4_quantise_bf16(const Bf16* x, std::int64_t n, std::uint8_t* codes, float* absmax);
void nf4_quantise_fp16(const F16* x, std::int64_t n, std::uint8_t* codes, float* absmax);

/// The offset of double quantisation: mean of `absmax`; 0 for none.
[[nodiscard]] float nf4_absmax_offset(const float* absmax, std::int64_t blocks);

/// How double quantisation chooses among the 256 values for y = r * (1 / nested_absmax).
///   table    bitsandbytes on the CPU: y is first rounded to one of 65536 steps from -1 to 1; the
///            value nearest to that step. Off by one value at most, where y lies within 2e-5 of a
///            midpoint. This is what checkpoints quantised on a CPU hold, and what is used here.
///   nearest  bitsandbytes on CUDA: the value nearest to y.
enum class Nf4ScaleRule { table, nearest };

/// Double quantisation of a run that begins at a nested block's first value. A nested block whose
/// values all equal the offset has nested absmax 0 and decodes to the offset.
/// @param q             u8 [blocks]
/// @param nested_absmax f32 [ceil(blocks / 256)]
void nf4_quantise_absmax(const float* absmax, std::int64_t blocks, float offset, std::uint8_t* q,
                         float* nested_absmax, Nf4ScaleRule rule = Nf4ScaleRule::table);

/// Decodes doubly quantised absmax values [first, first + count), for the whole tensor's pointers.
void nf4_dequantise_absmax(const std::uint8_t* q, const float* nested_absmax, float offset,
                           std::int64_t first, std::int64_t count, float* absmax);

/// A quantised tensor where it lies. Either `absmax`, or `q`, `nested_absmax` and `offset`.
struct Nf4View {
  const std::uint8_t* codes = nullptr;
  const float* absmax = nullptr;    // without double quantisation
  const std::uint8_t* q = nullptr;  // with it
  const float* nested_absmax = nullptr;
  float offset = 0;
};

/// Dequantises the values [first, first + n) of the flat tensor. `first` may be any value (an odd
/// one too). `out` holds n values.
void nf4_dequantise_fp32(const Nf4View& tensor, std::int64_t first, std::int64_t n, float* out);
void nf4_dequantise_bf16(const Nf4View& tensor, std::int64_t first, std::int64_t n, Bf16* out);

/// Instruction sets the NF4 code is compiled for; the best that the CPU has is taken.
enum class Nf4Isa { scalar, avx2, avx512 };
[[nodiscard]] Nf4Isa nf4_best_isa();
/// For tests: caps what is used from now on (not thread-safe). @returns what is used
Nf4Isa nf4_use_isa(Nf4Isa at_most);

}  // namespace poros
