// SPDX-License-Identifier: Apache-2.0
// Matrix products, the one interface that the executor uses: row-major, any of the operands
// transposed, f32 or bf16, with a batch of equal products. Implementations: MKL through LibTorch's
// own copy (gemm_cpu.cpp); cublasLt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/device.hpp"
#include "kernels/dtype.hpp"

namespace poros {

/// One operand in memory of the engine's device.
struct GemmOperand {
  const void* data = nullptr;
  DType dtype = DType::f32;       // f32 or bf16
  std::int64_t stride = 0;        // elements from stored row to stored row
  bool transposed = false;        // the stored matrix is the transpose of the one that is meant
  std::int64_t batch_stride = 0;  // elements from product to product; 0: shared
};

/// C[m, n] = alpha * A[m, k] B[k, n] + beta * C + bias, accumulated in fp32 and rounded once to C's
/// dtype. With beta = 0 what C held is not read (it may be NaN). With an addend beta multiplies
/// that instead of C: the sum of a branch and the residual stream. A batch whose products share one
/// C (c_batch_stride 0, beta 1) is added up in the order of the batch.
struct Gemm {
  GemmOperand a;  // stored [m, k], or [k, m] transposed
  GemmOperand b;  // stored [k, n], or [n, k] transposed (a linear's weight)
  void* c = nullptr;
  DType c_dtype = DType::f32;
  std::int64_t c_stride = 0;
  std::int64_t c_batch_stride = 0;
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t batch = 1;
  float alpha = 1.0F, beta = 0.0F;
  const void* addend = nullptr;    // [m, n] in C's dtype, or null; no batch
  std::int64_t addend_stride = 0;  // elements from row to row
  const void* bias = nullptr;      // [n], added to each row, or null; no batch
  DType bias_dtype = DType::f32;   // f32, bf16 or f16
};

class GemmEngine {
 public:
  virtual ~GemmEngine() = default;
  /// Queues the product on the engine's stream (CPU: computes it). @throws Error(Fault::run) when
  /// an operand does not fit the interface or the workspace.
  virtual void multiply(const Gemm& gemm) = 0;
};

/// @param workspace fp32 copies of bf16 operands (memory plan: "gemm.workspace"); may be null where
///                  all operands are f32
[[nodiscard]] std::unique_ptr<GemmEngine> make_cpu_gemm(const Stream& stream, float* workspace,
                                                        std::size_t workspace_bytes);

}  // namespace poros
