// SPDX-License-Identifier: Apache-2.0
// A sweep's arrays on their way to the device: through page-locked memory, so that the host goes on
// while they are copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "train/arena.hpp"

namespace poros {

class SweepUpload {
 public:
  /// @param bytes room for all arrays of a sweep, each rounded up to 256 bytes
  SweepUpload(std::uint64_t bytes, const Stream& stream);
  ~SweepUpload();
  SweepUpload(const SweepUpload&) = delete;
  SweepUpload& operator=(const SweepUpload&) = delete;

  /// Before a sweep's first array.
  void begin();
  void put(std::int32_t* to, std::span<const std::int32_t> from);
  /// After its last.
  void end();

 private:
  Stream stream_;
  std::uint64_t bytes_;  // of one of the two halves that sweeps take in turn
  HostSlab memory_;
  PinnedRange pin_;
  Event copied_[2];
  std::size_t half_ = 0;
  std::uint64_t used_ = 0;
};

}  // namespace poros
