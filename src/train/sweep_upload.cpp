// SPDX-License-Identifier: Apache-2.0
#include "train/sweep_upload.hpp"

#include <cstring>

#include "base/error.hpp"

namespace poros {

SweepUpload::SweepUpload(std::uint64_t bytes, const Stream& stream)
    : stream_(stream), bytes_(bytes), copied_{Event(stream), Event(stream)} {
  if (stream.device == DeviceKind::cpu) return;  // arrays are copied straight
  memory_ = HostSlab(2 * bytes, "the arrays of a sweep");
  pin_ = PinnedRange(memory_.data(), memory_.bytes(), stream);
}

SweepUpload::~SweepUpload() {
  try {
    for (const Event& event : copied_) event.wait_on_host();
  } catch (const Error&) {  // the device is lost; the process is about to say so
  }
}

void SweepUpload::begin() {
  half_ = 1 - half_;
  used_ = 0;
  copied_[half_].wait_on_host();  // the sweep before the last: long done
}

void SweepUpload::put(std::int32_t* to, std::span<const std::int32_t> from) {
  const std::uint64_t bytes = from.size_bytes();
  if (memory_.data() == nullptr) {
    copy_bytes(stream_, to, from.data(), bytes);
    return;
  }
  if (used_ + bytes > bytes_) {
    fail(Fault::run, "a sweep's arrays need more than the {} bytes foreseen", bytes_);
  }
  std::byte* at = memory_.data() + half_ * bytes_ + used_;
  std::memcpy(at, from.data(), bytes);
  copy_bytes(stream_, to, at, bytes);
  used_ += (bytes + 255) / 256 * 256;
}

void SweepUpload::end() {
  copied_[half_].record(stream_);
}

}  // namespace poros
