// SPDX-License-Identifier: Apache-2.0
#include "kernels/adamw.hpp"

#include "kernels/checks.hpp"

namespace poros {
namespace {

void check_list(const char* name, const Stream& stream, const AdamWTensors& tensors) {
  require(name, tensors.size >= 0, "negative size");
  require(name, tensors.size == 0 || tensors.host != nullptr, "null tensor list");
  require(name, stream.device == DeviceKind::cpu || tensors.size == 0 || tensors.device != nullptr,
          "CUDA needs the tensor list in device memory as well");
  for (std::int64_t t = 0; t < tensors.size; ++t) {
    require(name, tensors.host[t].count >= 0, "negative element count");
    require(name, tensors.host[t].count == 0 || tensors.host[t].gradient != nullptr,
            "null gradient");
  }
}

}  // namespace

std::int64_t global_norm_workspace(const AdamWTensors& tensors) {
  std::int64_t chunks = 0;
  for (std::int64_t t = 0; t < tensors.size; ++t) {
    chunks += (tensors.host[t].count + kOptimizerChunk - 1) / kOptimizerChunk;
  }
  return chunks + tensors.size;
}

void global_norm(const Stream& stream, const GlobalNorm& op) {
  const char* name = "global_norm";
  check_list(name, stream, op.tensors);
  require(name, op.result != nullptr, "null result");
  require(name, op.workspace != nullptr || global_norm_workspace(op.tensors) == 0,
          "null workspace");
  dispatch<const GlobalNorm&>(name, stream, cpu::global_norm, cuda_kernels().global_norm, op);
}

void adamw_step(const Stream& stream, const AdamWStep& op) {
  const char* name = "adamw_step";
  check_list(name, stream, op.tensors);
  require(name, op.step != nullptr, "null step count");
  require(name, op.max_norm >= 0 && (op.max_norm == 0 || op.norm != nullptr),
          "clipping needs the global norm");
  require(name, op.beta1 >= 0 && op.beta1 < 1 && op.beta2 >= 0 && op.beta2 < 1,
          "beta1 and beta2 must lie in [0, 1)");
  for (std::int64_t t = 0; t < op.tensors.size; ++t) {
    const AdamWTensor& tensor = op.tensors.host[t];
    require(name,
            tensor.count == 0 || (tensor.weight != nullptr && tensor.exp_avg != nullptr &&
                                  tensor.exp_avg_sq != nullptr),
            "null weight or moment");
    if (tensor.copy != nullptr) require_activation(name, tensor.copy_dtype);
  }
  dispatch<const AdamWStep&>(name, stream, cpu::adamw_step, cuda_kernels().adamw_step, op);
}

}  // namespace poros
