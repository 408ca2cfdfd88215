// SPDX-License-Identifier: Apache-2.0
#include "kernels/moe.hpp"

#include "kernels/checks.hpp"

namespace poros {
namespace {

void check_sizes(const char* name, std::int64_t tokens, std::int64_t experts, std::int64_t k) {
  require(name, tokens >= 0 && experts > 0 && experts <= kMaxExperts, "tokens or experts");
  require(name, k > 0 && k <= experts && k <= kMaxExpertsPerToken, "k out of range");
  require(name, tokens * k < (std::int64_t{1} << 31), "too many slots for 32-bit indices");
}

}  // namespace

void moe_route(const Stream& stream, const MoeRoute& op) {
  const char* name = "moe_route";
  require_activation(name, op.dtype);
  require_activation(name, op.weights_dtype);
  check_sizes(name, op.tokens, op.experts, op.k);
  if (op.tokens == 0) return;
  require(name,
          op.logits != nullptr && op.probabilities != nullptr && op.expert != nullptr &&
              op.weights != nullptr,
          "null operand");
  dispatch<const MoeRoute&>(name, stream, cpu::moe_route, cuda_kernels().moe_route, op);
}

void moe_route_backward(const Stream& stream, const MoeRouteBackward& op) {
  const char* name = "moe_route_backward";
  require_activation(name, op.dtype);
  check_sizes(name, op.tokens, op.experts, op.k);
  if (op.tokens == 0) return;
  require(name,
          op.probabilities != nullptr && op.expert != nullptr && op.dweights != nullptr &&
              op.dlogits != nullptr,
          "null operand");
  dispatch<const MoeRouteBackward&>(name, stream, cpu::moe_route_backward,
                                    cuda_kernels().moe_route_backward, op);
}

void moe_sort(const Stream& stream, const MoeSort& op) {
  const char* name = "moe_sort";
  check_sizes(name, op.tokens, op.experts, op.k);
  require(name, op.granule > 0 && op.granule <= kMaxExperts, "granule out of range");
  require(name, moe_sorted_rows(op.tokens * op.k, op.experts, op.granule) < (std::int64_t{1} << 31),
          "too many rows for 32-bit indices");
  require(name, op.offsets != nullptr, "null operand");
  require(name,
          op.tokens == 0 || (op.expert != nullptr && op.slot != nullptr && op.token != nullptr &&
                             op.position != nullptr),
          "null operand");
  dispatch<const MoeSort&>(name, stream, cpu::moe_sort, cuda_kernels().moe_sort, op);
}

void moe_row_keys(const Stream& stream, const MoeRowKeys& op) {
  const char* name = "moe_row_keys";
  require(name, op.rows >= 0 && op.k > 0 && op.k <= kMaxExpertsPerToken, "size out of range");
  if (op.rows == 0) return;
  require(name,
          op.slot != nullptr && op.token_micro_batch != nullptr && op.token_row_index != nullptr &&
              op.micro_batch != nullptr && op.row_index != nullptr,
          "null operand");
  dispatch<const MoeRowKeys&>(name, stream, cpu::moe_row_keys, cuda_kernels().moe_row_keys, op);
}

void moe_combine(const Stream& stream, const MoeCombine& op) {
  const char* name = "moe_combine";
  require_activation(name, op.dtype);
  require(name, op.tokens >= 0 && op.cols > 0 && op.k > 0 && op.k <= kMaxExpertsPerToken,
          "size out of range");
  if (op.tokens == 0) return;
  require(name, op.x != nullptr && op.position != nullptr && op.y != nullptr, "null operand");
  dispatch<const MoeCombine&>(name, stream, cpu::moe_combine, cuda_kernels().moe_combine, op);
}

void moe_combine_backward(const Stream& stream, const MoeCombineBackward& op) {
  const char* name = "moe_combine_backward";
  require_activation(name, op.dtype);
  require(name, op.tokens >= 0 && op.cols > 0 && op.k > 0 && op.k <= kMaxExpertsPerToken,
          "size out of range");
  if (op.tokens == 0) return;
  require(name,
          op.dy != nullptr && op.position != nullptr && op.weights != nullptr && op.dx != nullptr,
          "null operand");
  require(name, op.dweights == nullptr || op.x != nullptr, "dweights needs x");
  require_stride(name, op.dy_stride, op.cols);
  dispatch<const MoeCombineBackward&>(name, stream, cpu::moe_combine_backward,
                                      cuda_kernels().moe_combine_backward, op);
}

}  // namespace poros
