// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace poros {

/// Uninitialised bytes at a 4096-byte boundary.
class AlignedBytes {
 public:
  AlignedBytes() = default;
  explicit AlignedBytes(std::size_t bytes) { resize(bytes); }

  /// Room for `bytes`; the content is lost when it grows.
  void resize(std::size_t bytes) {
    if (bytes <= capacity_) return;
    const std::size_t rounded = (bytes + 4095) / 4096 * 4096;
    data_.reset();
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(4096, rounded)));
    if (!data_) throw std::bad_alloc();
    capacity_ = rounded;
  }
  [[nodiscard]] std::byte* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t capacity_ = 0;
};

}  // namespace poros
