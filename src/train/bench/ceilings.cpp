// SPDX-License-Identifier: Apache-2.0
#include "ceilings.hpp"

#include <algorithm>
#include <functional>
#include <random>
#include <vector>

#include "train/arena.hpp"
#include "train/device.hpp"
#include "train/gemm.hpp"

namespace poros::bench {
namespace {

/// Random bits that are finite bf16 numbers around 1: their high byte is 0x3F or 0xBF.
void fill_random(const Stream& stream, const DeviceBuffer& buffer, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<std::uint32_t> words(buffer.bytes() / 4);
  for (std::uint32_t& word : words) {
    word = (static_cast<std::uint32_t>(generator()) & 0x80FF80FFU) | 0x3F003F00U;
  }
  copy_bytes(stream, buffer.data(), words.data(), buffer.bytes());
  synchronise(stream);
}

/// Seconds a call of `work`, over as many calls as fill about `seconds`.
double time_of(const Stream& stream, double seconds, const std::function<void()>& work) {
  const Event begin(stream, true), end(stream, true);
  const auto round = [&](int calls) {
    begin.record(stream);
    for (int call = 0; call < calls; ++call) work();
    end.record(stream);
    end.wait_on_host();
    return end.since_s(begin) / calls;
  };
  (void)round(2);
  const double once = round(5);
  return round(static_cast<int>(std::clamp(seconds / once, 5.0, 20000.0)));
}

}  // namespace

Ceilings measure_ceilings(const Stream& stream, double seconds) {
  Ceilings ceilings;
  constexpr std::int64_t kSize = 8192;
  constexpr std::uint64_t kBytes = static_cast<std::uint64_t>(kSize * kSize) * 2;
  const DeviceBuffer a(kBytes, stream), b(kBytes, stream), c(kBytes, stream);
  const DeviceBuffer workspace(std::uint64_t{32} << 20, stream);
  fill_random(stream, a, 1);
  fill_random(stream, b, 2);
  const auto engine = cuda_device().make_gemm(stream, workspace.data(), workspace.bytes());
  const double product = time_of(stream, seconds, [&] {
    engine->multiply(
        {.a = {.data = a.data(), .dtype = DType::bf16, .stride = kSize},
         .b = {.data = b.data(), .dtype = DType::bf16, .stride = kSize, .transposed = true},
         .c = c.data(),
         .c_dtype = DType::bf16,
         .c_stride = kSize,
         .m = kSize,
         .n = kSize,
         .k = kSize});
  });
  ceilings.matrix_tflops = 2e-12 * kSize * kSize * kSize / product;

  const std::uint64_t big = std::uint64_t{2} << 30;
  const DeviceBuffer from(big, stream), to(big, stream);
  const double copy =
      time_of(stream, 0.1, [&] { copy_bytes(stream, to.data(), from.data(), big); });
  ceilings.device_gb_per_s = 2e-9 * static_cast<double>(big) / copy;

  const std::uint64_t part = std::uint64_t{512} << 20;
  const HostSlab host(part, "the copy ceiling");
  fill_bytes(Stream{}, host.data(), 1, part);
  const PinnedRange pin(host.data(), part, stream);
  const double link =
      time_of(stream, 0.1, [&] { copy_bytes(stream, to.data(), host.data(), part); });
  ceilings.host_link_gb_per_s = 1e-9 * static_cast<double>(part) / link;
  return ceilings;
}

}  // namespace poros::bench
