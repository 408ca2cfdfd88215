// SPDX-License-Identifier: Apache-2.0
#include "bench_device.hpp"

#include <algorithm>

#include <cuda_runtime_api.h>

#include "base/error.hpp"

namespace poros::bench {
namespace {

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    fail(Fault::run, "{}: CUDA said {} ({})", what, cudaGetErrorName(error),
         cudaGetErrorString(error));
  }
}

}  // namespace

DeviceInfo open_device() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    fail(Fault::environment, "no CUDA device here ({}); run this on a machine with a GPU",
         cudaGetErrorString(error));
  }
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "device properties");
  check(cudaSetDevice(0), "device");
  return {properties.name, properties.major * 10 + properties.minor,
          static_cast<double>(properties.l2CacheSize)};
}

DeviceMemory::DeviceMemory(std::size_t bytes) {
  check(cudaMalloc(&data_, bytes), "cudaMalloc");
}
DeviceMemory::~DeviceMemory() {
  (void)cudaFree(data_);
}

void upload(void* to, const void* from, std::size_t bytes) {
  check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "copy to the device");
}
void download(void* to, const void* from, std::size_t bytes) {
  check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "copy to the host");
}
void copy_on_device(const Stream& stream, void* to, const void* from, std::size_t bytes) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice,
                        static_cast<cudaStream_t>(stream.handle)),
        "copy on the device");
}

Stream new_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  return {.device = DeviceKind::cuda, .handle = stream};
}

void synchronise(const Stream& stream) {
  check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream.handle)), "waiting for the kernels");
}

double time_of(const Stream& stream, double seconds, const std::function<void(std::size_t)>& work) {
  auto* queue = static_cast<cudaStream_t>(stream.handle);
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  std::size_t done = 0;
  const auto round = [&](std::size_t calls) {
    check(cudaEventRecord(begin, queue), "event");
    for (std::size_t i = 0; i < calls; ++i) work(done++);
    check(cudaEventRecord(end, queue), "event");
    check(cudaEventSynchronize(end), "waiting for the kernels");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin, end), "event");
    return static_cast<double>(milliseconds) / 1e3;
  };
  (void)round(3);
  const double estimate = round(20) / 20;
  const auto calls = static_cast<std::size_t>(std::clamp(seconds / estimate, 20.0, 1e6));
  const double result = round(calls) / static_cast<double>(calls);
  check(cudaEventDestroy(begin), "event");
  check(cudaEventDestroy(end), "event");
  return result;
}

}  // namespace poros::bench
