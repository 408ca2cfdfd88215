// SPDX-License-Identifier: Apache-2.0
// Every op on the GPU against the CPU reference, tolerance by dtype; NaN fails. Skipped, with a
// message, where there is no GPU.
#include <cuda_runtime_api.h>

#include "all_ops.hpp"
#include "base/error.hpp"
#include "kernels/backends.hpp"

namespace poros {
namespace {

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

class CudaMemory : public test::Memory {
 public:
  ~CudaMemory() override {
    for (void* p : held_) (void)cudaFree(p);
  }
  void* allocate(std::size_t bytes) override {
    void* p = nullptr;
    check(cudaMalloc(&p, bytes + 1));  // never of length 0
    held_.push_back(p);
    return p;
  }
  void upload(void* to, const void* from, std::size_t bytes) override {
    check(cudaDeviceSynchronize());  // the legacy stream does not wait for other streams
    check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
    check(
        cudaDeviceSynchronize());  // from pageable memory the call returns before the bytes arrive
  }
  void download(void* to, const void* from, std::size_t bytes) override {
    check(cudaDeviceSynchronize());
    check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
  }

 private:
  std::vector<void*> held_;
};

class Cuda : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "no GPU here: " << cudaGetErrorString(error);
    }
    ASSERT_TRUE(register_cuda_kernels());
    cudaStream_t handle = nullptr;
    check(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking));
    stream_ = {.device = DeviceKind::cuda, .handle = handle};
  }
  void TearDown() override {
    if (stream_.handle != nullptr) {
      (void)cudaStreamDestroy(static_cast<cudaStream_t>(stream_.handle));
    }
  }
  Stream stream_;
};

TEST_F(Cuda, EveryOpAgreesWithTheCpuReference) {
  test::HostMemory host;
  CudaMemory device;
  const auto expected = test::run_all_ops({.threads = 2}, host);
  const auto actual = test::run_all_ops(stream_, device);
  ASSERT_EQ(expected.size(), actual.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(expected[i].name, actual[i].name);
    if (expected[i].agreement == test::Agreement::exact) {
      EXPECT_TRUE(expected[i].values.bytes() == actual[i].values.bytes())
          << expected[i].name << ": bits differ";
      continue;
    }
    std::vector<double> values;
    for (std::size_t v = 0; v < expected[i].values.size(); ++v) {
      values.push_back(expected[i].values[v]);
    }
    // Sums run in another order than on the CPU, and the fast functions serve bf16.
    test::expect_close(actual[i].values, values, expected[i].name, 4.0 * expected[i].loosen);
  }
}

TEST_F(Cuda, TwoRunsHaveEqualBits) {
  CudaMemory device;
  const auto first = test::run_all_ops(stream_, device);
  const auto second = test::run_all_ops(stream_, device);
  ASSERT_EQ(first.size(), second.size());
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_TRUE(first[i].values.bytes() == second[i].values.bytes()) << first[i].name;
  }
}

TEST_F(Cuda, DequantiseOfARealShapeIsTheCpusToTheBit) {
  // Quantised from values, so that codes and absmax are as in a checkpoint; every code occurs.
  constexpr std::int64_t kCount = 3584 * 2048 + 192;
  const test::Operand x = test::random_operand(DType::f32, kCount, 91, 0.02);
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(nf4_code_bytes(kCount)));
  std::vector<float> absmax(static_cast<std::size_t>(nf4_blocks(kCount)));
  nf4_quantise_fp32(static_cast<const float*>(x.data()), kCount, codes.data(), absmax.data());
  const float offset = nf4_absmax_offset(absmax.data(), nf4_blocks(kCount));
  std::vector<std::uint8_t> q(absmax.size());
  std::vector<float> nested(static_cast<std::size_t>(nf4_nested_blocks(kCount)));
  nf4_quantise_absmax(absmax.data(), nf4_blocks(kCount), offset, q.data(), nested.data());
  const auto decode = [&](const Stream& stream, test::Memory& memory, DType dtype) {
    const auto put = [&](const auto& values) {
      void* p = memory.allocate(values.size() * sizeof(values[0]));
      memory.upload(p, values.data(), values.size() * sizeof(values[0]));
      return p;
    };
    test::Operand out(dtype, kCount);
    void* to = put(out.bytes());
    dequantise(stream, {.tensor = {.codes = static_cast<const std::uint8_t*>(put(codes)),
                                   .q = static_cast<const std::uint8_t*>(put(q)),
                                   .nested_absmax = static_cast<const float*>(put(nested)),
                                   .offset = offset},
                        .count = kCount,
                        .out = to,
                        .dtype = dtype});
    memory.download(out.data(), to, out.bytes().size());
    return out;
  };
  test::HostMemory host;
  CudaMemory device;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    EXPECT_TRUE(decode({.threads = 2}, host, dtype).bytes() ==
                decode(stream_, device, dtype).bytes())
        << name_of(dtype);
  }
}

TEST_F(Cuda, AnIndexOutsideTheTableBecomesNan) {
  CudaMemory device;
  const std::vector<float> source(8, 1.0F);
  const std::vector<std::int32_t> index{0, 1, -1};
  auto* from = static_cast<float*>(device.allocate(32));
  auto* at = static_cast<std::int32_t*>(device.allocate(12));
  auto* y = static_cast<float*>(device.allocate(96));
  device.upload(from, source.data(), 32);
  device.upload(at, index.data(), 12);
  gather_rows(stream_,
              {.source = from, .index = at, .y = y, .rows = 3, .cols = 8, .source_rows = 1});
  std::vector<float> result(24);
  device.download(result.data(), y, 96);
  for (std::size_t i = 0; i < 24; ++i) {
    EXPECT_TRUE(i < 8 ? result[i] == 1.0F : std::isnan(result[i])) << i;
  }
}

TEST_F(Cuda, ARefusedLaunchThrowsAndNamesTheOp) {
  // 2^40 rows need more blocks than a grid has.
  float* none = reinterpret_cast<float*>(std::uintptr_t{256});
  try {
    scale_rows(stream_, {.x = none, .y = none, .rows = std::int64_t{1} << 40, .cols = 8});
    FAIL() << "launched";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("scale_rows"), std::string::npos);
  }
  check(cudaGetLastError());
}

}  // namespace
}  // namespace poros
