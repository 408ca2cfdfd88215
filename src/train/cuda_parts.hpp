// SPDX-License-Identifier: Apache-2.0
// The parts of poros_train_cuda that the table of device functions points to.
#pragma once

#include <cstddef>
#include <memory>

#include "train/attention_flash.hpp"
#include "train/gemm.hpp"

namespace poros {

/// Products by cublasLt on the stream. Each operand's alignment, shape and dtype alone choose the
/// algorithm; never timing or free memory.
/// @param workspace device memory that all products share, 256-byte aligned
[[nodiscard]] std::unique_ptr<GemmEngine> make_cuda_gemm(const Stream& stream, void* workspace,
                                                         std::size_t workspace_bytes);

[[nodiscard]] std::unique_ptr<FlashAttention> make_flash_attention();

}  // namespace poros
