// SPDX-License-Identifier: Apache-2.0
#include "train/arm/probe.hpp"

#include <algorithm>
#include <vector>

#include <unistd.h>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "train/arena.hpp"
#include "train/device.hpp"

namespace poros {
namespace {

constexpr std::uint64_t kChunk = std::uint64_t{256} << 20;
constexpr std::uint64_t kMostPinned = std::uint64_t{16} << 30;
constexpr int kCopies = 20;

/// Host memory that is page-locked where the system allows it, as the trainer's own.
struct Pinned {
  explicit Pinned(const Stream& stream)
      : slab(kChunk, "the probe"), range(slab.data(), kChunk, stream) {}
  HostSlab slab;
  PinnedRange range;  // after the slab: it lets go first
};

double copy_rate(const Stream& stream, const HostSlab& from) {
  const DeviceBuffer to(kChunk, stream);
  copy_bytes(stream, to.data(), from.data(), kChunk);  // warm-up
  synchronise(stream);
  const double begin = monotonic_s();
  for (int i = 0; i < kCopies; ++i) copy_bytes(stream, to.data(), from.data(), kChunk);
  synchronise(stream);
  return 1e-9 * static_cast<double>(kChunk) * kCopies / (monotonic_s() - begin);
}

}  // namespace

Json probe_gpu() {
  if (!has_cuda()) {
    fail(Fault::environment, "no GPU that CUDA can use, or a trainer without device code");
  }
  const double begin = monotonic_s();
  const Stream stream{DeviceKind::cuda, cuda_device().open(), 1};
  const CudaFacts facts = cuda_device().facts();
  synchronise(stream);
  Json json = {{"gpu", facts.name}, {"uuid", facts.uuid}, {"start_s", monotonic_s() - begin}};
  const auto available = static_cast<std::uint64_t>(::sysconf(_SC_AVPHYS_PAGES)) *
                         static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t most = std::min(kMostPinned, available / 2) / kChunk * kChunk;
  std::vector<Pinned> held;
  std::uint64_t pinned = 0;
  while (pinned < most) {
    if (!held.emplace_back(stream).range.pinned()) break;
    pinned += kChunk;
  }
  json["pinned_bytes"] = pinned;
  json["pinned_tried_bytes"] = most;
  json["host_to_device_gb_per_s"] =
      pinned > 0 ? Json(copy_rate(stream, held.front().slab)) : Json();
  return json;
}

}  // namespace poros
