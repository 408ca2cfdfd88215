// SPDX-License-Identifier: Apache-2.0
#include "all_ops.hpp"

#include <cstdlib>

#include "all_ops_runner.hpp"

namespace poros::test {

void* HostMemory::allocate(std::size_t bytes) {
  void* p = std::aligned_alloc(256, (bytes / 256 + 1) * 256);
  held_.emplace_back(p);
  return p;
}
void HostMemory::upload(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}
void HostMemory::download(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

std::vector<Output> run_all_ops(const Stream& stream, Memory& memory) {
  Runner run(stream, memory);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t cols : {std::int64_t{1}, kCols, std::int64_t{3584}}) {
      norms(run, dtype, cols, NormWeight::plain);
      norms(run, dtype, cols, NormWeight::plus_one);
    }
    heads(run, dtype);
    for (const std::int64_t cols : {kCols, std::int64_t{1024}}) {
      gated(run, dtype, GateFunction::silu, cols);
      gated(run, dtype, GateFunction::gelu_tanh, cols);
    }
    loss(run, dtype, 0.0F);
    loss(run, dtype, 5.0F);
    dropouts(run, dtype);
    elementwise(run, dtype);
    experts(run, dtype);
    for (const bool nested : {false, true}) {
      for (const std::int64_t count : {1, 63, 64, 8191, 3 * 16384 + 4096, 100001}) {
        weights(run, dtype, count, nested);
      }
    }
  }
  for (const std::int64_t classes : {63, 1000, 4096, 4104}) rounded_exponentials(run, classes);
  low_rank(run);
  for (const std::int64_t cols : {8, 96, 896, 1016}) {
    strided_weights(run, DType::bf16, 67, cols);
    strided_weights(run, DType::f32, 64, cols);
  }
  attention(run, 0.0F, 0, false);
  attention(run, 0.0F, 100, true);
  attention(run, 4.0F, 0, true);
  attention(run, 4.0F, 33, false);
  attention(run, 4.0F, 0, false, 4200);  // longer than a row that the GPU keeps in registers
  optimizer(run);
  return std::move(run.outputs);
}

}  // namespace poros::test
