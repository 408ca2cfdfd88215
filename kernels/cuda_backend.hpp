// SPDX-License-Identifier: Apache-2.0
// The device functions behind register_cuda_kernels(). No CUDA header. Internal to kernels/.
#pragma once

#include "kernels/backends.hpp"

namespace poros::cuda {
void rms_norm_forward(const Stream& stream, const RmsNormForward& op);
void rms_norm_backward(const Stream& stream, const RmsNormBackward& op);
void rotary_forward(const Stream& stream, const Rotary& op);
void rotary_backward(const Stream& stream, const Rotary& op);
void gated_activation_forward(const Stream& stream, const GatedForward& op);
void gated_activation_backward(const Stream& stream, const GatedBackward& op);
void attention_softmax_forward(const Stream& stream, const AttentionSoftmaxForward& op);
void attention_softmax_backward(const Stream& stream, const AttentionSoftmaxBackward& op);
void cross_entropy_init(const Stream& stream, const CrossEntropyState& state, std::int64_t rows);
void cross_entropy_accumulate(const Stream& stream, const CrossEntropyAccumulate& op);
void cross_entropy_loss(const Stream& stream, const CrossEntropyLoss& op);
void cross_entropy_gradient(const Stream& stream, const CrossEntropyGradient& op);
void cross_entropy_finish(const Stream& stream, const CrossEntropyFinish& op);
void global_norm(const Stream& stream, const GlobalNorm& op);
void adamw_step(const Stream& stream, const AdamWStep& op);
void dropout(const Stream& stream, const Dropout& op);
void copy_rows(const Stream& stream, const CopyRows& op);
void add_rows(const Stream& stream, const AddRows& op);
void add_bias(const Stream& stream, const AddBias& op);
void scale_rows(const Stream& stream, const ScaleRows& op);
void gather_rows(const Stream& stream, const GatherRows& op);
void group_sum(const Stream& stream, const GroupSum& op);
void moe_route(const Stream& stream, const MoeRoute& op);
void moe_route_backward(const Stream& stream, const MoeRouteBackward& op);
void moe_sort(const Stream& stream, const MoeSort& op);
void moe_row_keys(const Stream& stream, const MoeRowKeys& op);
void moe_combine(const Stream& stream, const MoeCombine& op);
void moe_combine_backward(const Stream& stream, const MoeCombineBackward& op);
void dequantise(const Stream& stream, const Dequantise& op);
void low_rank_project(const Stream& stream, const LowRankProject& op);
void low_rank_outer(const Stream& stream, const LowRankOuter& op);
void low_rank_transpose(const Stream& stream, const LowRankTranspose& op);
void low_rank_columns(const Stream& stream, const LowRankColumns& op);
}  // namespace poros::cuda
