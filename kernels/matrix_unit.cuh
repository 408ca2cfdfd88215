// SPDX-License-Identifier: Apache-2.0
// The matrix unit (mma.m16n8k16, bf16 in, fp32 sums) and copies into shared memory that run in the
// background, as every GPU from compute capability 8.0 on has them. Internal to kernels/.
#pragma once

#include "kernels/cuda_common.cuh"

namespace poros::cuda {

/// c += a b for a 16 x 16 tile of a and a 16 x 8 tile of b.
__device__ __forceinline__ void multiply_add(float (&c)[4], unsigned a0, unsigned a1, unsigned a2,
                                             unsigned a3, unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ unsigned shared_address(const void* at) {
  return static_cast<unsigned>(__cvta_generic_to_shared(at));
}

/// Copies 16 bytes in the background, or zeros.
__device__ __forceinline__ void copy_16(void* to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)),
               "l"(from), "r"(there ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void end_of_copies() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}
/// Waits until at most `InFlight` groups of this thread's copies are on their way.
template <int InFlight>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(InFlight) : "memory");
}

/// Matrices of 8 rows of 16 bytes, transposed; lane i gives the address of row i.
__device__ __forceinline__ void load_transposed(unsigned (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void load_transposed(unsigned (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];\n"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row))
               : "memory");
}

/// Allows the kernel that much shared memory: more than 48 KB are given only when asked for.
template <typename Op>
void allow_shared(const char* name, void (*kernel)(Op), std::size_t bytes) {
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) {
    throw_cuda_error(name, cudaGetErrorName(error), cudaGetErrorString(error), __FILE__, __LINE__);
  }
}

}  // namespace poros::cuda
