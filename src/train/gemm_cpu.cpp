// SPDX-License-Identifier: Apache-2.0
// fp32 products by the BLAS inside LibTorch (MKL in the official builds). Its Fortran entry takes
// leading dimensions as they are, allocates nothing per call and is what at::mm itself calls.
#include <algorithm>
#include <climits>

#include <ATen/Parallel.h>
#include <omp.h>
#include <stdlib.h>

#include "base/error.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/parallel.hpp"
#include "plan/numerical_plan.hpp"
#include "train/executor.hpp"
#include "train/gemm.hpp"

extern "C" void sgemm_(const char* transa, const char* transb, const int* m, const int* n,
                       const int* k, const float* alpha, const float* a, const int* lda,
                       const float* b, const int* ldb, const float* beta, float* c, const int* ldc);

namespace poros {
namespace {

/// An operand as fp32: where it is, and its stored row stride.
struct Fp32Operand {
  const float* data;
  int stride;
};

int to_int(std::int64_t value) {
  if (value < 0 || value > INT_MAX) {
    fail(Fault::run, "a matrix dimension or stride of {} is outside what BLAS takes", value);
  }
  return static_cast<int>(value);
}

class CpuGemm final : public GemmEngine {
 public:
  CpuGemm(const Stream& stream, float* workspace, std::size_t bytes)
      : stream_(stream), workspace_(workspace), floats_(bytes / sizeof(float)) {}

  void multiply(const Gemm& gemm) override {
    if (gemm.m == 0 || gemm.n == 0 || gemm.batch == 0) return;
    for (std::int64_t index = 0; index < gemm.batch; ++index) multiply_one(gemm, index);
  }

 private:
  void multiply_one(const Gemm& gemm, std::int64_t index) {
    used_ = 0;
    const Fp32Operand a = operand(gemm.a, index, gemm.a.transposed ? gemm.k : gemm.m,
                                  gemm.a.transposed ? gemm.m : gemm.k);
    const Fp32Operand b = operand(gemm.b, index, gemm.b.transposed ? gemm.n : gemm.k,
                                  gemm.b.transposed ? gemm.k : gemm.n);
    const std::size_t c_offset = static_cast<std::size_t>(index * gemm.c_batch_stride);
    std::byte* c_bytes = static_cast<std::byte*>(gemm.c) + c_offset * bytes_of(gemm.c_dtype);
    const bool rounds = gemm.c_dtype != DType::f32;
    float* c = reinterpret_cast<float*>(c_bytes);
    std::int64_t c_stride = gemm.c_stride;
    if (rounds) {
      c = take(gemm.m * gemm.n);
      c_stride = gemm.n;
    }
    if (gemm.beta != 0 && (rounds || gemm.addend != nullptr)) {
      const bool other = gemm.addend != nullptr;
      copy_rows(stream_, {.x = other ? gemm.addend : c_bytes,
                          .y = c,
                          .rows = gemm.m,
                          .cols = gemm.n,
                          .x_stride = other ? gemm.addend_stride : gemm.c_stride,
                          .y_stride = c_stride,
                          .x_dtype = gemm.c_dtype,
                          .y_dtype = DType::f32});
    }
    // Row-major C is column-major C transposed: C^T = op(B)^T op(A)^T.
    const char transpose_b = gemm.b.transposed ? 'T' : 'N';
    const char transpose_a = gemm.a.transposed ? 'T' : 'N';
    const int n = to_int(gemm.n), m = to_int(gemm.m), k = to_int(gemm.k), ldc = to_int(c_stride);
    sgemm_(&transpose_b, &transpose_a, &n, &m, &k, &gemm.alpha, b.data, &b.stride, a.data,
           &a.stride, &gemm.beta, c, &ldc);
    if (gemm.bias != nullptr) {
      add_bias(stream_, {.x = c,
                         .bias = gemm.bias,
                         .rows = gemm.m,
                         .cols = gemm.n,
                         .x_stride = c_stride,
                         .bias_dtype = gemm.bias_dtype});
    }
    if (rounds) {
      copy_rows(stream_, {.x = c,
                          .y = c_bytes,
                          .rows = gemm.m,
                          .cols = gemm.n,
                          .x_stride = c_stride,
                          .y_stride = gemm.c_stride,
                          .x_dtype = DType::f32,
                          .y_dtype = gemm.c_dtype});
    }
  }

  Fp32Operand operand(const GemmOperand& source, std::int64_t index, std::int64_t rows,
                      std::int64_t cols) {
    const auto offset = static_cast<std::size_t>(index * source.batch_stride);
    const std::byte* data =
        static_cast<const std::byte*>(source.data) + offset * bytes_of(source.dtype);
    if (source.dtype == DType::f32) {
      return {reinterpret_cast<const float*>(data), to_int(source.stride)};
    }
    float* copy = take(rows * cols);
    copy_rows(stream_, {.x = data,
                        .y = copy,
                        .rows = rows,
                        .cols = cols,
                        .x_stride = source.stride,
                        .y_stride = cols,
                        .x_dtype = source.dtype,
                        .y_dtype = DType::f32});
    return {copy, to_int(cols)};
  }

  float* take(std::int64_t floats) {
    const std::size_t begin = (used_ + 15) / 16 * 16;  // 64-byte aligned
    if (begin + static_cast<std::size_t>(floats) > floats_) {
      fail(Fault::run, "a product needs {} floats of workspace, the memory plan gave {}",
           begin + static_cast<std::size_t>(floats), floats_);
    }
    used_ = begin + static_cast<std::size_t>(floats);
    return workspace_ + begin;
  }

  Stream stream_;
  float* workspace_;
  std::size_t floats_;
  std::size_t used_ = 0;
};

/// The kernels' rows on the threads that MKL uses as well, so that two pools don't fight for the
/// cores.
void run_on_openmp(int parts, void (*call)(void* context, int part), void* context) {
#pragma omp parallel for num_threads(parts) schedule(static, 1)
  for (int part = 0; part < parts; ++part) call(context, part);
}

}  // namespace

std::unique_ptr<GemmEngine> make_cpu_gemm(const Stream& stream, float* workspace,
                                          std::size_t workspace_bytes) {
  return std::make_unique<CpuGemm>(stream, workspace, workspace_bytes);
}

void prepare_cpu_math(const DeviceModel& device) {
  // MKL reads the variable at its first call and keeps to one code path from then on, so that equal
  // operands at equal alignment give equal bits in every process.
  const char* path = device.instruction_set == "avx512" ? "AVX512"
                     : device.instruction_set == "avx2" ? "AVX2"
                                                        : "COMPATIBLE";
  ::setenv("MKL_CBWR", path, 1);
  ::setenv("MKL_DYNAMIC", "FALSE", 1);  // never fewer threads than the plan says
  at::set_num_threads(device.threads);
  omp_set_dynamic(0);
  set_parallel_runner(run_on_openmp);
}

}  // namespace poros
