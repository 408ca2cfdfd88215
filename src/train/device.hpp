// SPDX-License-Identifier: Apache-2.0
// What the executor needs of a device beside kernels: memory, copies, events, side streams. On the
// CPU all of it is immediate. A program with device code fills the table of device functions
// (register_cuda_device(), library poros_train_cuda); one without it links no CUDA at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/device.hpp"
#include "plan/numerical_plan.hpp"

namespace poros {

class FlashAttention;
class GemmEngine;

/// What a GPU says of itself.
struct CudaFacts {
  std::string name, uuid;  // uuid as nvidia-smi prints it: "GPU-xxxxxxxx-..."
  std::uint64_t total_bytes = 0;
  int compute_capability = 0;  // 90 for 9.0
  int multiprocessors = 0;
  int runtime_version = 0, driver_version = 0, cublaslt_version = 0;
};

/// Figures of the framework's caching allocator on the device [bytes].
struct CudaMemory {
  std::uint64_t allocated = 0, allocated_peak = 0;
  std::uint64_t reserved = 0, reserved_peak = 0;
  std::int64_t device_allocations = 0;  // cudaMalloc calls so far
};

/// Functions of the device runtime. `stream` and `event` are cudaStream_t and cudaEvent_t. All
/// throw Error(Fault::run) naming the call that CUDA refused.
struct CudaDevice {
  /// How many GPUs this process sees; 0 without a driver.
  int (*count)() = nullptr;
  /// Makes the first visible GPU current and returns the stream for all compute of this thread.
  void* (*open)() = nullptr;
  CudaFacts (*facts)() = nullptr;
  CudaMemory (*memory)() = nullptr;
  void (*reset_peaks)() = nullptr;
  /// The allocator refuses to hold more.
  void (*limit_memory)(std::uint64_t bytes) = nullptr;

  /// From the framework's caching allocator. @throws c10::OutOfMemoryError
  void* (*allocate)(std::uint64_t bytes, void* stream) = nullptr;
  void (*release)(void* data) = nullptr;
  void (*copy)(void* stream, void* to, const void* from, std::uint64_t bytes) = nullptr;
  void (*fill)(void* stream, void* to, int value, std::uint64_t bytes) = nullptr;
  void (*synchronise)(void* stream) = nullptr;

  void* (*make_stream)() = nullptr;
  void (*destroy_stream)(void* stream) = nullptr;
  void* (*make_event)(bool timed) = nullptr;
  void (*destroy_event)(void* event) = nullptr;
  void (*record)(void* event, void* stream) = nullptr;
  void (*wait)(void* stream, void* event) = nullptr;  // the stream waits, not the caller
  void (*wait_on_host)(void* event) = nullptr;
  double (*elapsed_s)(void* begin, void* end) = nullptr;  // both timed and reached

  /// Page-locks memory so that copies from it are asynchronous and kernels can read it.
  /// @returns false where the system refuses (ulimit, container, WSL); nothing is left behind
  bool (*pin)(const void* data, std::uint64_t bytes) = nullptr;
  void (*unpin)(const void* data) = nullptr;
  /// For tests: the stream stands still for so long.
  void (*delay)(void* stream, double seconds) = nullptr;

  std::unique_ptr<GemmEngine> (*make_gemm)(const Stream& stream, void* workspace,
                                           std::size_t workspace_bytes) = nullptr;
  std::unique_ptr<FlashAttention> (*make_flash)() = nullptr;
};

/// The table of this process; its functions are null without device code.
[[nodiscard]] CudaDevice& cuda_device();

/// Whether this program has device code and sees a GPU.
[[nodiscard]] bool has_cuda();

/// Fills the table and that of the kernels. In poros_train_cuda, which only programs with device
/// code link.
void register_cuda_device();

/// The GPU that this process uses, as a plan names it. @throws Error(Fault::environment) without
/// device code or GPU.
[[nodiscard]] DeviceModel cuda_device_model();

/// Moves on the stream's device, queued in order with its kernels. A copy to host memory is done
/// only after synchronise().
void copy_bytes(const Stream& stream, void* to, const void* from, std::uint64_t bytes);
void fill_bytes(const Stream& stream, void* to, std::uint8_t value, std::uint64_t bytes);

/// Waits until all that was queued on the stream is done.
void synchronise(const Stream& stream);

/// Copies to host memory and waits for it.
void read_back(const Stream& stream, void* to, const void* from, std::uint64_t bytes);

/// The stream stands still for so long (tests of races).
void delay(const Stream& stream, double seconds);

/// Memory of the stream's device, freed with the object: host memory on the CPU. Not cleared.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(std::uint64_t bytes, const Stream& stream);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  void reset();
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  DeviceKind device_ = DeviceKind::cpu;
};

/// A stream of its own beside `main`; on the CPU it stands for `main` itself.
class SideStream {
 public:
  explicit SideStream(const Stream& main);
  ~SideStream();
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;
  [[nodiscard]] const Stream& stream() const { return stream_; }

 private:
  Stream stream_;
};

/// A point in a stream's work that other streams can wait for. Nothing on the CPU.
class Event {
 public:
  explicit Event(const Stream& stream, bool timed = false);
  ~Event();
  Event(Event&& other) noexcept : handle_(other.handle_) { other.handle_ = nullptr; }
  Event& operator=(Event&&) = delete;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(const Stream& stream) const;
  /// Work queued on `stream` from now on waits; an event that was never recorded holds nothing up.
  void hold(const Stream& stream) const;
  void wait_on_host() const;
  /// Seconds from `begin` to this; both timed and reached.
  [[nodiscard]] double since_s(const Event& begin) const;

 private:
  void* handle_ = nullptr;
};

/// Page-locked for the lifetime of this object, in pieces of at most 4 GiB (one huge registration
/// fails on some drivers). On the CPU memory counts as pinned and nothing is done.
class PinnedRange {
 public:
  PinnedRange() = default;
  PinnedRange(const void* data, std::uint64_t bytes, const Stream& stream);
  ~PinnedRange();
  PinnedRange(PinnedRange&& other) noexcept;
  PinnedRange& operator=(PinnedRange&& other) noexcept;
  PinnedRange(const PinnedRange&) = delete;
  PinnedRange& operator=(const PinnedRange&) = delete;

  /// False: the system refused, and none of it is pinned.
  [[nodiscard]] bool pinned() const { return pinned_; }
  [[nodiscard]] std::uint64_t pinned_bytes() const { return registered_; }

  static constexpr std::uint64_t kPiece = std::uint64_t{4} << 30;

 private:
  void reset();
  const std::byte* data_ = nullptr;
  std::uint64_t registered_ = 0;
  bool pinned_ = false;
};

/// copy_bytes between the device and a PinnedRange: cut where registered pieces meet, since one
/// copy must not span two of them.
/// @param at where the host side begins in the range [bytes]
void copy_pinned(const Stream& stream, void* to, const void* from, std::uint64_t bytes,
                 std::uint64_t at);

}  // namespace poros
