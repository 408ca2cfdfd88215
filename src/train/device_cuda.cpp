// SPDX-License-Identifier: Apache-2.0
// The table of device functions by the CUDA runtime and LibTorch's caching allocator. Memory comes
// from that allocator alone, so that its figures are the whole truth about this process.
#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>

#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <cublasLt.h>

#include "kernels/backends.hpp"
#include "train/cuda_check.hpp"
#include "train/cuda_parts.hpp"
#include "train/device.hpp"

namespace poros {
namespace {

constexpr c10::DeviceIndex kDevice = 0;  // the first visible one; CUDA_VISIBLE_DEVICES chooses

cudaStream_t stream_of(void* stream) {
  return static_cast<cudaStream_t>(stream);
}
cudaEvent_t event_of(void* event) {
  return static_cast<cudaEvent_t>(event);
}

int count() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  return devices;
}

void* open() {
  check_cuda(cudaSetDevice(kDevice), "cudaSetDevice");
  at::Context& context = at::globalContext();
  context.lazyInitDevice(c10::DeviceType::CUDA);  // makes the caching allocator
  context.setDeterministicAlgorithms(true, false);
  context.setDeterministicFillUninitializedMemory(false);  // costs a pass over each temporary
  // LibTorch's own operators run on the thread's current stream: it is the same one.
  static const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool(false, kDevice);
  c10::cuda::setCurrentCUDAStream(stream);
  return stream.stream();
}

std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

CudaFacts facts() {
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, kDevice), "cudaGetDeviceProperties");
  CudaFacts facts;
  facts.name = properties.name;
  facts.uuid = uuid_text(properties.uuid);
  facts.total_bytes = properties.totalGlobalMem;
  facts.compute_capability = properties.major * 10 + properties.minor;
  facts.multiprocessors = properties.multiProcessorCount;
  check_cuda(cudaRuntimeGetVersion(&facts.runtime_version), "cudaRuntimeGetVersion");
  check_cuda(cudaDriverGetVersion(&facts.driver_version), "cudaDriverGetVersion");
  facts.cublaslt_version = static_cast<int>(cublasLtGetVersion());
  return facts;
}

CudaMemory memory() {
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(kDevice);
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto bytes = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
  return {.allocated = bytes(stats.allocated_bytes[kAll].current),
          .allocated_peak = bytes(stats.allocated_bytes[kAll].peak),
          .reserved = bytes(stats.reserved_bytes[kAll].current),
          .reserved_peak = bytes(stats.reserved_bytes[kAll].peak),
          .device_allocations = stats.num_device_alloc};
}

void reset_peaks() {
  c10::cuda::CUDACachingAllocator::resetPeakStats(kDevice);
}

void limit_memory(std::uint64_t bytes) {
  c10::cuda::CUDACachingAllocator::emptyCache();  // what it keeps for later counts as well
  const auto total = static_cast<double>(facts().total_bytes);
  c10::cuda::CUDACachingAllocator::setMemoryFraction(
      std::min(1.0, static_cast<double>(bytes) / total), kDevice);
}

void* allocate(std::uint64_t bytes, void* stream) {
  return c10::cuda::CUDACachingAllocator::raw_alloc_with_stream(bytes, stream_of(stream));
}

void release(void* data) {
  c10::cuda::CUDACachingAllocator::raw_delete(data);
}

void copy(void* stream, void* to, const void* from, std::uint64_t bytes) {
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(stream)),
             "cudaMemcpyAsync");
}

void fill(void* stream, void* to, int value, std::uint64_t bytes) {
  check_cuda(cudaMemsetAsync(to, value, bytes, stream_of(stream)), "cudaMemsetAsync");
}

void synchronise(void* stream) {
  check_cuda(cudaStreamSynchronize(stream_of(stream)), "cudaStreamSynchronize");
}

void* make_stream() {
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
             "cudaStreamCreateWithFlags");
  return stream;
}

// Destructors run while an exception may be on its way: what they can't free, the process's end
// frees.
void destroy_stream(void* stream) {
  (void)cudaStreamSynchronize(stream_of(stream));
  (void)cudaStreamDestroy(stream_of(stream));
}

void* make_event(bool timed) {
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming),
             "cudaEventCreateWithFlags");
  return event;
}

void destroy_event(void* event) {
  (void)cudaEventDestroy(event_of(event));
}

void record(void* event, void* stream) {
  check_cuda(cudaEventRecord(event_of(event), stream_of(stream)), "cudaEventRecord");
}

void wait(void* stream, void* event) {
  check_cuda(cudaStreamWaitEvent(stream_of(stream), event_of(event), 0), "cudaStreamWaitEvent");
}

void wait_on_host(void* event) {
  check_cuda(cudaEventSynchronize(event_of(event)), "cudaEventSynchronize");
}

double elapsed_s(void* begin, void* end) {
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, event_of(begin), event_of(end)),
             "cudaEventElapsedTime");
  return static_cast<double>(milliseconds) * 1e-3;
}

bool pin(const void* data, std::uint64_t bytes) {
  const cudaError_t error = cudaHostRegister(const_cast<void*>(data), bytes,
                                             cudaHostRegisterPortable | cudaHostRegisterMapped);
  if (error == cudaSuccess) return true;
  (void)cudaGetLastError();  // the refusal is sticky: the next launch would report it
  return false;
}

void unpin(const void* data) {
  (void)cudaHostUnregister(const_cast<void*>(data));
}

void delay(void* stream, double seconds) {
  auto held = std::make_unique<double>(seconds);
  check_cuda(cudaLaunchHostFunc(
                 stream_of(stream),
                 [](void* opaque) {
                   const std::unique_ptr<double> owned(static_cast<double*>(opaque));
                   std::this_thread::sleep_for(std::chrono::duration<double>(*owned));
                 },
                 held.get()),
             "cudaLaunchHostFunc");
  (void)held.release();  // the callback owns it
}

}  // namespace

void register_cuda_device() {
  (void)register_cuda_kernels();
  cuda_device() = {.count = count,
                   .open = open,
                   .facts = facts,
                   .memory = memory,
                   .reset_peaks = reset_peaks,
                   .limit_memory = limit_memory,
                   .allocate = allocate,
                   .release = release,
                   .copy = copy,
                   .fill = fill,
                   .synchronise = synchronise,
                   .make_stream = make_stream,
                   .destroy_stream = destroy_stream,
                   .make_event = make_event,
                   .destroy_event = destroy_event,
                   .record = record,
                   .wait = wait,
                   .wait_on_host = wait_on_host,
                   .elapsed_s = elapsed_s,
                   .pin = pin,
                   .unpin = unpin,
                   .delay = delay,
                   .make_gemm = make_cuda_gemm,
                   .make_flash = make_flash_attention};
}

}  // namespace poros
