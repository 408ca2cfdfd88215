// SPDX-License-Identifier: Apache-2.0
// The memory of a training step: one allocation of exactly the bytes that the memory plan says, and
// its buffers by name. Nothing else is allocated while a step runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/device.hpp"
#include "plan/memory_plan.hpp"
#include "train/device.hpp"

namespace poros {

/// An exact anonymous mapping of host memory, in huge pages where the system grants them (the
/// framework's pinned allocator rounds up to twice the size). Zeroed.
class HostSlab {
 public:
  HostSlab() = default;
  /// @throws Error(Fault::environment) naming purpose and size when memory is short
  HostSlab(std::uint64_t bytes, const std::string& purpose);
  ~HostSlab();
  HostSlab(HostSlab&& other) noexcept;
  HostSlab& operator=(HostSlab&& other) noexcept;
  HostSlab(const HostSlab&) = delete;
  HostSlab& operator=(const HostSlab&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  void reset();
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

/// Device memory of a plan, zeroed. On the CPU "device" is a host slab of its own; on CUDA one
/// allocation from the framework's caching allocator.
class Arena {
 public:
  Arena(const MemoryPlan& plan, const Stream& stream);

  /// Begin of a device buffer. @throws Error(Fault::run) when the plan has none of that name
  [[nodiscard]] std::byte* at(const std::string& name) const;
  /// The same, or null.
  [[nodiscard]] std::byte* find(const std::string& name) const;
  template <typename T>
  [[nodiscard]] T* as(const std::string& name) const {
    return reinterpret_cast<T*>(at(name));
  }
  template <typename T>
  [[nodiscard]] T* find_as(const std::string& name) const {
    return reinterpret_cast<T*>(find(name));
  }
  [[nodiscard]] std::uint64_t bytes_of(const std::string& name) const;
  [[nodiscard]] std::uint64_t bytes() const { return plan_.arena_bytes; }

  /// Memory for a part of a layer . On CUDA it comes from
  /// the framework's allocator, which keeps it for the next time, and what attention takes there in
  /// between has the same memory. One at a time: the last one is given back first.
  std::byte* borrow(Borrowed which);
  void give_back();

 private:
  const MemoryPlan& plan_;
  Stream stream_;
  HostSlab host_;
  DeviceBuffer device_, borrowed_;
  std::byte* data_ = nullptr;  // of the one that is used
};

}  // namespace poros
