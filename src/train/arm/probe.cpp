// SPDX-License-Identifier: Apache-2.0
#include "train/arm/probe.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "train/device.hpp"

namespace poros {
namespace {

constexpr std::uint64_t kChunk = std::uint64_t{256} << 20;
constexpr std::uint64_t kMostPinned = std::uint64_t{16} << 30;
constexpr int kCopies = 20;

/// Anonymous memory that is given back.
class Mapping {
 public:
  Mapping()
      : data_(::mmap(nullptr, kChunk, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (data_ == MAP_FAILED) return;
    std::memset(data_, 1, kChunk);  // pages must be there to be locked
  }
  ~Mapping() {
    if (pinned_) cuda_device().unpin(data_);
    if (data_ != MAP_FAILED) (void)::munmap(data_, kChunk);
  }
  Mapping(Mapping&& other) noexcept : data_(other.data_), pinned_(other.pinned_) {
    other.data_ = MAP_FAILED;
    other.pinned_ = false;
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  Mapping& operator=(Mapping&&) = delete;
  [[nodiscard]] bool pin() {
    pinned_ = data_ != MAP_FAILED && cuda_device().pin(data_, kChunk);
    return pinned_;
  }
  [[nodiscard]] const void* data() const { return data_; }

 private:
  void* data_;
  bool pinned_ = false;
};

double copy_rate(const Stream& stream, const Mapping& from) {
  CudaDevice& device = cuda_device();
  void* to = device.allocate(kChunk, stream.handle);
  copy_bytes(stream, to, from.data(), kChunk);  // warm-up
  synchronise(stream);
  const double begin = monotonic_s();
  for (int i = 0; i < kCopies; ++i) copy_bytes(stream, to, from.data(), kChunk);
  synchronise(stream);
  const double seconds = monotonic_s() - begin;
  device.release(to);
  return 1e-9 * static_cast<double>(kChunk) * kCopies / seconds;
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
  std::vector<Mapping> held;
  std::uint64_t pinned = 0;
  while (pinned < most) {
    held.emplace_back();
    if (!held.back().pin()) break;
    pinned += kChunk;
  }
  json["pinned_bytes"] = pinned;
  json["pinned_tried_bytes"] = most;
  json["host_to_device_gb_per_s"] = pinned > 0 ? Json(copy_rate(stream, held.front())) : Json();
  return json;
}

}  // namespace poros
