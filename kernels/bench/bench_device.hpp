// SPDX-License-Identifier: Apache-2.0
// What the benchmark needs of the CUDA runtime, each call checked.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "kernels/device.hpp"

namespace poros::bench {

struct DeviceInfo {
  std::string name;
  int compute_capability = 0;  // 90 for 9.0
  double l2_bytes = 0;
};

/// The first visible GPU. @throws Error(Fault::environment) when there is none.
[[nodiscard]] DeviceInfo open_device();

/// Device memory that is freed with the object.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept : data_(other.data_) { other.data_ = nullptr; }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  DeviceMemory& operator=(DeviceMemory&&) = delete;
  [[nodiscard]] void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

void upload(void* to, const void* from, std::size_t bytes);
void download(void* to, const void* from, std::size_t bytes);
void copy_on_device(const Stream& stream, void* to, const void* from, std::size_t bytes);
[[nodiscard]] Stream new_stream();
void synchronise(const Stream& stream);

/// Seconds that one call of work(i) takes: after a warm-up, the mean over calls that together last
/// at least `seconds`. i counts up, so that work can take turns over buffers.
[[nodiscard]] double time_of(const Stream& stream, double seconds,
                             const std::function<void(std::size_t)>& work);

}  // namespace poros::bench
