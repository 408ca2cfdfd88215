// SPDX-License-Identifier: Apache-2.0
// What stands behind the ops: the CPU reference of each, and a table of device functions that a
// program with device code fills (so that a program without any links none). Internal to kernels/,
// except register_cuda_kernels().
#pragma once

#include "kernels/adamw.hpp"
#include "kernels/attention_softmax.hpp"
#include "kernels/cross_entropy.hpp"
#include "kernels/dequantise.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/gated_activation.hpp"
#include "kernels/low_rank.hpp"
#include "kernels/moe.hpp"
#include "kernels/philox.hpp"
#include "kernels/rms_norm.hpp"
#include "kernels/rotary.hpp"

namespace poros {

template <typename Op>
using Kernel = void (*)(const Stream& stream, const Op& op);

/// One entry an op; null until registered.
struct CudaKernels {
  Kernel<RmsNormForward> rms_norm_forward = nullptr;
  Kernel<RmsNormBackward> rms_norm_backward = nullptr;
  Kernel<Rotary> rotary_forward = nullptr;
  Kernel<Rotary> rotary_backward = nullptr;
  Kernel<GatedForward> gated_activation_forward = nullptr;
  Kernel<GatedBackward> gated_activation_backward = nullptr;
  Kernel<AttentionSoftmaxForward> attention_softmax_forward = nullptr;
  Kernel<AttentionSoftmaxBackward> attention_softmax_backward = nullptr;
  void (*cross_entropy_init)(const Stream&, const CrossEntropyState&, std::int64_t) = nullptr;
  Kernel<CrossEntropyAccumulate> cross_entropy_accumulate = nullptr;
  Kernel<CrossEntropyLoss> cross_entropy_loss = nullptr;
  Kernel<CrossEntropyGradient> cross_entropy_gradient = nullptr;
  Kernel<CrossEntropyFinish> cross_entropy_finish = nullptr;
  Kernel<GlobalNorm> global_norm = nullptr;
  Kernel<AdamWStep> adamw_step = nullptr;
  Kernel<Dropout> dropout = nullptr;
  Kernel<CopyRows> copy_rows = nullptr;
  Kernel<AddRows> add_rows = nullptr;
  Kernel<AddBias> add_bias = nullptr;
  Kernel<ScaleRows> scale_rows = nullptr;
  Kernel<GatherRows> gather_rows = nullptr;
  Kernel<GroupSum> group_sum = nullptr;
  Kernel<MoeRoute> moe_route = nullptr;
  Kernel<MoeRouteBackward> moe_route_backward = nullptr;
  Kernel<MoeSort> moe_sort = nullptr;
  Kernel<MoeRowKeys> moe_row_keys = nullptr;
  Kernel<MoeCombine> moe_combine = nullptr;
  Kernel<MoeCombineBackward> moe_combine_backward = nullptr;
  Kernel<Dequantise> dequantise = nullptr;
  Kernel<LowRankProject> low_rank_project = nullptr;
  Kernel<LowRankOuter> low_rank_outer = nullptr;
  Kernel<LowRankTranspose> low_rank_transpose = nullptr;
  Kernel<LowRankColumns> low_rank_columns = nullptr;
};

/// The table of this process.
[[nodiscard]] CudaKernels& cuda_kernels();

/// Fills the table; to be called once before the first op on CUDA. In the library
/// poros_kernels_cuda, which is there in every build: without a CUDA toolkit it holds no device
/// code.
/// @returns whether this program has device code
bool register_cuda_kernels();

namespace cpu {
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
}  // namespace cpu

}  // namespace poros
