// SPDX-License-Identifier: Apache-2.0
// NF4 on the CPU: one source for each step, compiled for several instruction sets; which one runs
// is decided once. Every step is element-wise or a maximum, so the bits are the same for all.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/dtype.hpp"
#include "kernels/nf4.hpp"

#if defined(__x86_64__)
#ifndef __clang__
#pragma GCC diagnostic push
// GCC 12 reports its own _mm512_undefined_ps() as uninitialised (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#ifndef __clang__
#pragma GCC diagnostic pop
#endif
#define POROS_NF4_X86 1
#endif

namespace poros {
namespace {

struct LoadFp32 {
  const float* x;
  float operator()(std::int64_t i) const {
    float value;
    std::memcpy(&value, reinterpret_cast<const char*>(x) + i * 4, 4);
    return value;
  }
};
struct LoadBf16 {
  const Bf16* x;
  float operator()(std::int64_t i) const {
    Bf16 value;
    std::memcpy(&value, reinterpret_cast<const char*>(x) + i * 2, 2);
    return to_float(value);
  }
};
struct LoadF16 {
  const F16* x;
  float operator()(std::int64_t i) const {
    F16 value;
    std::memcpy(&value, reinterpret_cast<const char*>(x) + i * 2, 2);
    return to_float(value);
  }
};

/// Codes and absmax of 64 values. Loops over 16 lanes are what the compiler turns into vectors.
[[gnu::always_inline]] inline float quantise_full_block(const float* v, const float* thresholds,
                                                        std::uint8_t* codes) {
  constexpr int kLanes = 16;
  std::array<float, kLanes> lane_max{};
  for (int i = 0; i < kNf4Block; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      const float magnitude = std::fabs(v[i + l]);
      lane_max[l] = magnitude > lane_max[l] ? magnitude : lane_max[l];  // a NaN stays out
    }
  }
  float absmax = 0;
  for (const float m : lane_max) absmax = m > absmax ? m : absmax;
  // The floor keeps a zero block's y at 0, where 0 * infinity would be NaN.
  const float scale = 1.0F / (absmax > 1e-38F ? absmax : 1e-38F);
  std::array<std::int32_t, kNf4Block> code{};
  for (int i = 0; i < kNf4Block; ++i) {
    const float y = v[i] * scale;
    std::int32_t count = 0;
    for (int t = 0; t < 15; ++t) count += y > thresholds[t] ? 1 : 0;
    code[i] = count;
  }
  for (int k = 0; k < kNf4Block / 2; ++k) {
    codes[k] = static_cast<std::uint8_t>((code[2 * k] << 4) | code[2 * k + 1]);
  }
  return absmax;
}

/// Blocks from value `begin`, the first of a block, to the end.
template <class Load>
[[gnu::always_inline]] inline void quantise(Load load, std::int64_t begin, std::int64_t n,
                                            std::uint8_t* codes, float* absmax) {
  const float* thresholds = nf4_thresholds().data();
  std::array<float, kNf4Block> v{};
  for (; begin + kNf4Block <= n; begin += kNf4Block) {
    for (int i = 0; i < kNf4Block; ++i) v[i] = load(begin + i);
    const float largest = quantise_full_block(v.data(), thresholds, codes + begin / 2);
    std::memcpy(reinterpret_cast<char*>(absmax) + begin / kNf4Block * 4, &largest, 4);
  }
  if (begin == n) return;
  v.fill(0);  // the rest of a short block: zeros change no maximum, and their codes are dropped
  for (std::int64_t i = begin; i < n; ++i) v[i - begin] = load(i);
  std::array<std::uint8_t, kNf4Block / 2> packed{};
  const float largest = quantise_full_block(v.data(), thresholds, packed.data());
  std::memcpy(reinterpret_cast<char*>(absmax) + begin / kNf4Block * 4, &largest, 4);
  std::copy_n(packed.begin(), nf4_code_bytes(n - begin), codes + begin / 2);
}

/// absmax of block b.
float block_scale(const Nf4View& t, std::int64_t b) {
  float value;
  if (t.q == nullptr) {
    std::memcpy(&value, reinterpret_cast<const char*>(t.absmax) + b * 4, 4);
    return value;
  }
  std::memcpy(&value, reinterpret_cast<const char*>(t.nested_absmax) + b / kNf4NestedBlock * 4, 4);
  const float product = nf4_dynamic_map()[t.q[b]] * value;
  return product + t.offset;
}

void store(float* out, std::int64_t i, float value) {
  std::memcpy(reinterpret_cast<char*>(out) + i * 4, &value, 4);
}
void store(Bf16* out, std::int64_t i, float value) {
  const Bf16 rounded = to_bf16(value);
  std::memcpy(reinterpret_cast<char*>(out) + i * 2, &rounded, 2);
}

/// Values [first, first + n) one by one: the ends of a run, and machines without vector code.
template <class T>
void dequantise_scalar(const Nf4View& t, std::int64_t first, std::int64_t n, T* out) {
  const auto values = nf4_values();
  for (std::int64_t i = 0; i < n;) {
    const std::int64_t at = first + i;
    const std::int64_t end = std::min(n, i + kNf4Block - at % kNf4Block);
    const float scale = block_scale(t, at / kNf4Block);
    for (; i < end; ++i) {
      const std::uint8_t byte = t.codes[(first + i) / 2];
      store(out, i, values[(first + i) % 2 == 0 ? byte >> 4 : byte & 15] * scale);
    }
  }
}

#ifdef POROS_NF4_X86

#define POROS_AVX512 [[gnu::target("avx512f,avx512bw,avx512vl,avx512dq")]]

POROS_AVX512 void block_avx512(const std::uint8_t* codes, float scale, float* out) {
  const __m512 table = _mm512_loadu_ps(nf4_values().data());
  const __m512 factor = _mm512_set1_ps(scale);
  for (int i = 0; i < kNf4Block; i += 16) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + i / 2));
    const __m128i mask = _mm_set1_epi8(15);
    const __m128i nibbles = _mm_unpacklo_epi8(_mm_and_si128(_mm_srli_epi16(bytes, 4), mask),
                                              _mm_and_si128(bytes, mask));
    const __m512 v = _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(nibbles), table);
    _mm512_storeu_ps(out + i, _mm512_mul_ps(v, factor));
  }
}

POROS_AVX512 void block_avx512(const std::uint8_t* codes, float scale, Bf16* out) {
  alignas(64) std::array<float, kNf4Block> v;
  block_avx512(codes, scale, v.data());
  for (int i = 0; i < kNf4Block; i += 16) {
    const __m512 f = _mm512_load_ps(v.data() + i);
    const __m512i bits = _mm512_castps_si512(f);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(f, f, _CMP_UNORD_Q);
    const __m512i rounded = _mm512_srli_epi32(_mm512_mask_mov_epi32(sum, nan, quiet), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm512_cvtepi32_epi16(rounded));
  }
}

[[gnu::target("avx2")]] void block_avx2(const std::uint8_t* codes, float scale, float* out) {
  const __m256 low = _mm256_loadu_ps(nf4_values().data());
  const __m256 high = _mm256_loadu_ps(nf4_values().data() + 8);
  const __m256 factor = _mm256_set1_ps(scale);
  for (int i = 0; i < kNf4Block; i += 16) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + i / 2));
    const __m128i mask = _mm_set1_epi8(15);
    const __m128i nibbles = _mm_unpacklo_epi8(_mm_and_si128(_mm_srli_epi16(bytes, 4), mask),
                                              _mm_and_si128(bytes, mask));
    for (int half = 0; half < 2; ++half) {
      const __m256i index =
          _mm256_cvtepu8_epi32(half == 0 ? nibbles : _mm_unpackhi_epi64(nibbles, nibbles));
      const __m256 v = _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, index),
                                        _mm256_permutevar8x32_ps(high, index),
                                        _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
      _mm256_storeu_ps(out + i + half * 8, _mm256_mul_ps(v, factor));
    }
  }
}

[[gnu::target("avx2")]] void block_avx2(const std::uint8_t* codes, float scale, Bf16* out) {
  alignas(32) std::array<float, kNf4Block> v;
  block_avx2(codes, scale, v.data());
  for (int i = 0; i < kNf4Block; i += 16) {
    __m256i rounded[2];
    for (int half = 0; half < 2; ++half) {
      const __m256 f = _mm256_load_ps(v.data() + i + half * 8);
      const __m256i bits = _mm256_castps_si256(f);
      const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
      const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
      const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
      const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(f, f, _CMP_UNORD_Q));
      rounded[half] = _mm256_srli_epi32(_mm256_blendv_epi8(sum, quiet, nan), 16);
    }
    const __m256i packed = _mm256_packus_epi32(rounded[0], rounded[1]);  // by 128-bit halves
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i),
                        _mm256_permute4x64_epi64(packed, 0xd8));
  }
}

POROS_AVX512 inline __m512 load16(const LoadFp32& load, std::int64_t i) {
  return _mm512_loadu_ps(reinterpret_cast<const char*>(load.x) + i * 4);
}
POROS_AVX512 inline __m512 load16(const LoadBf16& load, std::int64_t i) {
  const __m256i bits = _mm256_loadu_si256(
      reinterpret_cast<const __m256i*>(reinterpret_cast<const char*>(load.x) + i * 2));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
POROS_AVX512 inline __m512 load16(const LoadF16& load, std::int64_t i) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(
      reinterpret_cast<const __m256i*>(reinterpret_cast<const char*>(load.x) + i * 2)));
}

/// quantise_full_block for 64 values in registers: the code is found by halving, four compares with
/// a threshold that a permutation looks up.
template <class Load>
POROS_AVX512 float quantise_block_avx512(const Load& load, std::int64_t begin, __m512 thresholds,
                                         std::uint8_t* codes) {
  __m512 v[4];
  __m512 largest = _mm512_setzero_ps();
  for (int k = 0; k < 4; ++k) {
    v[k] = load16(load, begin + 16 * k);
    largest = _mm512_max_ps(_mm512_abs_ps(v[k]), largest);  // the second operand where one is NaN
  }
  const float absmax = _mm512_reduce_max_ps(largest);
  const __m512 scale = _mm512_set1_ps(1.0F / (absmax > 1e-38F ? absmax : 1e-38F));
  for (int k = 0; k < 4; ++k) {
    const __m512 y = _mm512_mul_ps(v[k], scale);
    __m512i code = _mm512_setzero_si512();
    for (int step = 8; step > 0; step /= 2) {
      const __m512i probe = _mm512_add_epi32(code, _mm512_set1_epi32(step - 1));
      const __mmask16 above =
          _mm512_cmp_ps_mask(y, _mm512_permutexvar_ps(probe, thresholds), _CMP_GT_OQ);
      code = _mm512_mask_add_epi32(code, above, code, _mm512_set1_epi32(step));
    }
    // 16 times the first of each pair plus the second.
    const __m128i pairs = _mm_maddubs_epi16(_mm512_cvtepi32_epi8(code), _mm_set1_epi16(0x0110));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(codes + 8 * k), _mm_cvtepi16_epi8(pairs));
  }
  return absmax;
}

template <class Load>
POROS_AVX512 void quantise_avx512(Load load, std::int64_t n, std::uint8_t* codes, float* absmax) {
  const __m512 thresholds = _mm512_maskz_loadu_ps(0x7fff, nf4_thresholds().data());
  const std::int64_t whole = n - n % kNf4Block;
  for (std::int64_t begin = 0; begin < whole; begin += kNf4Block) {
    const float largest = quantise_block_avx512(load, begin, thresholds, codes + begin / 2);
    std::memcpy(reinterpret_cast<char*>(absmax) + begin / kNf4Block * 4, &largest, 4);
  }
  quantise(load, whole, n, codes, absmax);
}
template <class Load>
[[gnu::target("avx2")]] void quantise_avx2(Load load, std::int64_t n, std::uint8_t* codes,
                                           float* absmax) {
  quantise(load, 0, n, codes, absmax);
}

Nf4Isa detect() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    return Nf4Isa::avx512;
  }
  return __builtin_cpu_supports("avx2") ? Nf4Isa::avx2 : Nf4Isa::scalar;
}
#else
Nf4Isa detect() {
  return Nf4Isa::scalar;
}
#endif

Nf4Isa& used_isa() {
  static Nf4Isa isa = nf4_best_isa();
  return isa;
}

template <class Load>
void quantise_dispatch(Load load, std::int64_t n, std::uint8_t* codes, float* absmax) {
#ifdef POROS_NF4_X86
  if (used_isa() == Nf4Isa::avx512) return quantise_avx512(load, n, codes, absmax);
  if (used_isa() == Nf4Isa::avx2) return quantise_avx2(load, n, codes, absmax);
#endif
  quantise(load, 0, n, codes, absmax);
}

template <class T>
void dequantise_dispatch(const Nf4View& t, std::int64_t first, std::int64_t n, T* out) {
#ifdef POROS_NF4_X86
  const Nf4Isa isa = used_isa();
  if (isa != Nf4Isa::scalar) {
    const std::int64_t head = std::min(n, (kNf4Block - first % kNf4Block) % kNf4Block);
    dequantise_scalar(t, first, head, out);
    std::int64_t i = head;
    for (; i + kNf4Block <= n; i += kNf4Block) {
      const float scale = block_scale(t, (first + i) / kNf4Block);
      const std::uint8_t* codes = t.codes + (first + i) / 2;
      isa == Nf4Isa::avx512 ? block_avx512(codes, scale, out + i)
                            : block_avx2(codes, scale, out + i);
    }
    return dequantise_scalar(t, first + i, n - i, out + i);
  }
#endif
  dequantise_scalar(t, first, n, out);
}

}  // namespace

Nf4Isa nf4_best_isa() {
  static const Nf4Isa best = detect();
  return best;
}

Nf4Isa nf4_use_isa(Nf4Isa at_most) {
  return used_isa() = std::min(at_most, nf4_best_isa());
}

void nf4_quantise_fp32(const float* x, std::int64_t n, std::uint8_t* codes, float* absmax) {
  quantise_dispatch(LoadFp32{x}, n, codes, absmax);
}
void nf4_quantise_bf16(const Bf16* x, std::int64_t n, std::uint8_t* codes, float* absmax) {
  quantise_dispatch(LoadBf16{x}, n, codes, absmax);
}
void nf4_quantise_fp16(const F16* x, std::int64_t n, std::uint8_t* codes, float* absmax) {
  quantise_dispatch(LoadF16{x}, n, codes, absmax);
}

void nf4_dequantise_fp32(const Nf4View& tensor, std::int64_t first, std::int64_t n, float* out) {
  dequantise_dispatch(tensor, first, n, out);
}
void nf4_dequantise_bf16(const Nf4View& tensor, std::int64_t first, std::int64_t n, Bf16* out) {
  dequantise_dispatch(tensor, first, n, out);
}

}  // namespace poros
