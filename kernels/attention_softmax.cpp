// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention_softmax.hpp"

#include "kernels/checks.hpp"

namespace poros {
namespace {

template <typename Op>
bool check(const char* name, const Op& op) {
  require(name, op.batch >= 0 && op.queries >= 0 && op.keys >= 0, "negative size");
  require_stride(name, op.row_stride, op.keys);
  const std::int64_t row_stride = op.row_stride != 0 ? op.row_stride : op.keys;
  require_stride(name, op.matrix_stride, (op.queries - 1) * row_stride + op.keys);
  require(name, op.softcap >= 0.0F, "softcap must be positive, or 0 for none");
  if (op.rounded != nullptr) require_activation(name, op.rounded_dtype);
  return op.batch > 0 && op.queries > 0 && op.keys > 0;
}

}  // namespace

void attention_softmax_forward(const Stream& stream, const AttentionSoftmaxForward& op) {
  const char* name = "attention_softmax_forward";
  if (!check(name, op)) return;
  require(name, op.scores != nullptr, "null operand");
  require(name, op.mask.window >= 0 && op.mask.first_query >= 0 && op.mask.first_key >= 0,
          "negative mask offset or window");
  dispatch<const AttentionSoftmaxForward&>(name, stream, cpu::attention_softmax_forward,
                                           cuda_kernels().attention_softmax_forward, op);
}

void attention_softmax_backward(const Stream& stream, const AttentionSoftmaxBackward& op) {
  const char* name = "attention_softmax_backward";
  if (!check(name, op)) return;
  require(name, op.probabilities != nullptr && op.gradient != nullptr, "null operand");
  require(name, op.softcap == 0.0F || op.logsumexp != nullptr, "softcap needs logsumexp");
  dispatch<const AttentionSoftmaxBackward&>(name, stream, cpu::attention_softmax_backward,
                                            cuda_kernels().attention_softmax_backward, op);
}

}  // namespace poros
