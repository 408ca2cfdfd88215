// SPDX-License-Identifier: Apache-2.0
#include "train/arena.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <sys/mman.h>

#include "base/error.hpp"

namespace poros {
namespace {

constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;

}  // namespace

HostSlab::HostSlab(std::uint64_t bytes, const std::string& purpose) : bytes_(bytes) {
  if (bytes == 0) return;
  void* address =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) {
    bytes_ = 0;
    throw OutOfMemory(fmt::format("no host memory for {} ({} bytes)", purpose, bytes));
  }
  data_ = static_cast<std::byte*>(address);
  if (bytes >= kHugePage) ::madvise(address, bytes, MADV_HUGEPAGE);
}

HostSlab::~HostSlab() {
  reset();
}

HostSlab::HostSlab(HostSlab&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

HostSlab& HostSlab::operator=(HostSlab&& other) noexcept {
  if (this != &other) {
    reset();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

void HostSlab::reset() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
  data_ = nullptr;
  bytes_ = 0;
}

Arena::Arena(const MemoryPlan& plan, const Stream& stream) : plan_(plan), stream_(stream) {
  if (stream.device == DeviceKind::cpu) {
    host_ = HostSlab(plan.arena_bytes, "the buffers of a training step");
    data_ = host_.data();
    return;
  }
  device_ = DeviceBuffer(plan.arena_bytes, stream);
  data_ = device_.data();
  fill_bytes(stream, data_, 0, plan.arena_bytes);
}

std::byte* Arena::borrow(Borrowed which) {
  if (stream_.device == DeviceKind::cpu) return data_ + plan_.borrowed_offset;
  borrowed_ = DeviceBuffer();
  if (plan_.borrowed_bytes[which] > 0) {
    borrowed_ = DeviceBuffer(plan_.borrowed_bytes[which], stream_);
  }
  return borrowed_.data();
}

void Arena::give_back() {
  borrowed_ = DeviceBuffer();
}

std::byte* Arena::find(const std::string& name) const {
  const auto found =
      std::find_if(plan_.buffers.begin(), plan_.buffers.end(), [&](const PlannedBuffer& buffer) {
        return buffer.place == MemoryPlace::device && !buffer.borrowed && buffer.name == name;
      });
  return found == plan_.buffers.end() ? nullptr : data_ + found->offset;
}

std::byte* Arena::at(const std::string& name) const {
  std::byte* buffer = find(name);
  if (buffer == nullptr) fail(Fault::run, "the memory plan has no device buffer \"{}\"", name);
  return buffer;
}

std::uint64_t Arena::bytes_of(const std::string& name) const {
  return plan_.find(name).bytes;
}

}  // namespace poros
