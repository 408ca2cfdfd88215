// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda_backend.hpp"

namespace poros {

bool register_cuda_kernels() {
  cuda_kernels() = {.rms_norm_forward = cuda::rms_norm_forward,
                    .rms_norm_backward = cuda::rms_norm_backward,
                    .rotary_forward = cuda::rotary_forward,
                    .rotary_backward = cuda::rotary_backward,
                    .gated_activation_forward = cuda::gated_activation_forward,
                    .gated_activation_backward = cuda::gated_activation_backward,
                    .attention_softmax_forward = cuda::attention_softmax_forward,
                    .attention_softmax_backward = cuda::attention_softmax_backward,
                    .cross_entropy_init = cuda::cross_entropy_init,
                    .cross_entropy_accumulate = cuda::cross_entropy_accumulate,
                    .cross_entropy_loss = cuda::cross_entropy_loss,
                    .cross_entropy_gradient = cuda::cross_entropy_gradient,
                    .cross_entropy_finish = cuda::cross_entropy_finish,
                    .global_norm = cuda::global_norm,
                    .adamw_step = cuda::adamw_step,
                    .dropout = cuda::dropout,
                    .copy_rows = cuda::copy_rows,
                    .add_rows = cuda::add_rows,
                    .add_bias = cuda::add_bias,
                    .scale_rows = cuda::scale_rows,
                    .gather_rows = cuda::gather_rows,
                    .group_sum = cuda::group_sum,
                    .moe_route = cuda::moe_route,
                    .moe_route_backward = cuda::moe_route_backward,
                    .moe_sort = cuda::moe_sort,
                    .moe_row_keys = cuda::moe_row_keys,
                    .moe_combine = cuda::moe_combine,
                    .moe_combine_backward = cuda::moe_combine_backward,
                    .dequantise = cuda::dequantise,
                    .low_rank_project = cuda::low_rank_project,
                    .low_rank_outer = cuda::low_rank_outer,
                    .low_rank_transpose = cuda::low_rank_transpose,
                    .low_rank_columns = cuda::low_rank_columns};
  return true;
}

}  // namespace poros
