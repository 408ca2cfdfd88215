// SPDX-License-Identifier: Apache-2.0
#include "train/device.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include "base/error.hpp"

namespace poros {
namespace {

bool on_cuda(const Stream& stream) {
  if (stream.device == DeviceKind::cpu) return false;
  if (cuda_device().copy == nullptr) {
    fail(Fault::environment, "this program was built without device code; use device: cpu");
  }
  return true;
}

}  // namespace

CudaDevice& cuda_device() {
  static CudaDevice table;
  return table;
}

bool has_cuda() {
  return cuda_device().count != nullptr && cuda_device().count() > 0;
}

DeviceModel cuda_device_model() {
  if (!has_cuda()) {
    fail(Fault::environment, "no GPU that this program can use was found; use device: cpu");
  }
  DeviceModel model;
  model.cuda = true;
  const CudaFacts facts = cuda_device().facts();
  model.name = facts.name;
  model.multiprocessors = facts.multiprocessors;
  return model;
}

void copy_bytes(const Stream& stream, void* to, const void* from, std::uint64_t bytes) {
  if (bytes == 0) return;
  if (on_cuda(stream)) {
    cuda_device().copy(stream.handle, to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

void fill_bytes(const Stream& stream, void* to, std::uint8_t value, std::uint64_t bytes) {
  if (bytes == 0) return;
  if (on_cuda(stream)) {
    cuda_device().fill(stream.handle, to, value, bytes);
  } else {
    std::memset(to, value, bytes);
  }
}

void synchronise(const Stream& stream) {
  if (on_cuda(stream)) cuda_device().synchronise(stream.handle);
}

void read_back(const Stream& stream, void* to, const void* from, std::uint64_t bytes) {
  copy_bytes(stream, to, from, bytes);
  synchronise(stream);
}

void delay(const Stream& stream, double seconds) {
  if (seconds <= 0) return;
  if (on_cuda(stream)) {
    cuda_device().delay(stream.handle, seconds);
  } else {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }
}

DeviceBuffer::DeviceBuffer(std::uint64_t bytes, const Stream& stream)
    : bytes_(bytes), device_(stream.device) {
  if (bytes == 0) return;
  data_ =
      static_cast<std::byte*>(on_cuda(stream) ? cuda_device().allocate(bytes, stream.handle)
                                              : std::aligned_alloc(256, (bytes + 255) / 256 * 256));
  if (data_ == nullptr) throw std::bad_alloc();
}

DeviceBuffer::~DeviceBuffer() {
  reset();
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      device_(other.device_) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  if (this != &other) {
    reset();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    device_ = other.device_;
  }
  return *this;
}

void DeviceBuffer::reset() {
  if (data_ == nullptr) return;
  if (device_ == DeviceKind::cuda) {
    cuda_device().release(data_);
  } else {
    std::free(data_);
  }
  data_ = nullptr;
}

SideStream::SideStream(const Stream& main) : stream_(main) {
  if (on_cuda(main)) stream_.handle = cuda_device().make_stream();
}

SideStream::~SideStream() {
  if (stream_.device == DeviceKind::cuda) cuda_device().destroy_stream(stream_.handle);
}

Event::Event(const Stream& stream, bool timed) {
  if (on_cuda(stream)) handle_ = cuda_device().make_event(timed);
}

Event::~Event() {
  if (handle_ != nullptr) cuda_device().destroy_event(handle_);
}

void Event::record(const Stream& stream) const {
  if (handle_ != nullptr) cuda_device().record(handle_, stream.handle);
}

void Event::hold(const Stream& stream) const {
  if (handle_ != nullptr) cuda_device().wait(stream.handle, handle_);
}

void Event::wait_on_host() const {
  if (handle_ != nullptr) cuda_device().wait_on_host(handle_);
}

double Event::since_s(const Event& begin) const {
  return handle_ != nullptr ? cuda_device().elapsed_s(begin.handle_, handle_) : 0;
}

PinnedRange::PinnedRange(const void* data, std::uint64_t bytes, const Stream& stream) {
  if (!on_cuda(stream) || bytes == 0) {
    pinned_ = true;
    return;
  }
  data_ = static_cast<const std::byte*>(data);
  while (registered_ < bytes) {
    const std::uint64_t piece = std::min(kPiece, bytes - registered_);
    if (!cuda_device().pin(data_ + registered_, piece)) {
      reset();
      return;
    }
    registered_ += piece;
  }
  pinned_ = true;
}

PinnedRange::~PinnedRange() {
  reset();
}

PinnedRange::PinnedRange(PinnedRange&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      registered_(std::exchange(other.registered_, 0)),
      pinned_(other.pinned_) {}

PinnedRange& PinnedRange::operator=(PinnedRange&& other) noexcept {
  if (this != &other) {
    reset();
    data_ = std::exchange(other.data_, nullptr);
    registered_ = std::exchange(other.registered_, 0);
    pinned_ = other.pinned_;
  }
  return *this;
}

void PinnedRange::reset() {
  for (std::uint64_t at = 0; at < registered_; at += kPiece) cuda_device().unpin(data_ + at);
  data_ = nullptr;
  registered_ = 0;
  pinned_ = false;
}

void copy_pinned(const Stream& stream, void* to, const void* from, std::uint64_t bytes,
                 std::uint64_t at) {
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  while (bytes > 0) {
    const std::uint64_t piece = std::min(bytes, PinnedRange::kPiece - at % PinnedRange::kPiece);
    copy_bytes(stream, target, source, piece);
    target += piece;
    source += piece;
    at += piece;
    bytes -= piece;
  }
}

}  // namespace poros
