// SPDX-License-Identifier: Apache-2.0
#include "kernels/cross_entropy.hpp"

#include "kernels/checks.hpp"

namespace poros {
namespace {

void check_state(const char* name, const CrossEntropyState& state) {
  require(name, state.max != nullptr && state.sum != nullptr && state.target_logit != nullptr,
          "null state");
}

}  // namespace

void cross_entropy_init(const Stream& stream, const CrossEntropyState& state, std::int64_t rows) {
  const char* name = "cross_entropy_init";
  require(name, rows >= 0, "negative size");
  if (rows == 0) return;
  check_state(name, state);
  dispatch<const CrossEntropyState&, std::int64_t>(name, stream, cpu::cross_entropy_init,
                                                   cuda_kernels().cross_entropy_init, state, rows);
}

void cross_entropy_accumulate(const Stream& stream, const CrossEntropyAccumulate& op) {
  const char* name = "cross_entropy_accumulate";
  require_activation(name, op.dtype);
  require(name, op.rows >= 0 && op.classes > 0 && op.first_class >= 0, "size out of range");
  require_stride(name, op.row_stride, op.classes);
  require(name, op.softcap >= 0.0F, "softcap must be positive, or 0 for none");
  if (op.rows == 0) return;
  require(name, op.logits != nullptr && op.targets != nullptr, "null operand");
  const bool in_place_fits =
      stream.device == DeviceKind::cuda && op.classes <= kCrossEntropyInPlace;
  require(name,
          !op.round_exponentials ||
              (op.dtype == DType::f32 && (op.exponentials != op.logits || in_place_fits)),
          "rounded exponentials need f32 logits and a place of their own");
  check_state(name, op.state);
  dispatch<const CrossEntropyAccumulate&>(name, stream, cpu::cross_entropy_accumulate,
                                          cuda_kernels().cross_entropy_accumulate, op);
}

void cross_entropy_loss(const Stream& stream, const CrossEntropyLoss& op) {
  const char* name = "cross_entropy_loss";
  require(name, op.rows >= 0, "negative size");
  require(name, op.total != nullptr && (op.rows == 0 || op.row_loss != nullptr), "null operand");
  if (op.rows > 0) {
    require(name, op.targets != nullptr, "null operand");
    check_state(name, op.state);
  }
  dispatch<const CrossEntropyLoss&>(name, stream, cpu::cross_entropy_loss,
                                    cuda_kernels().cross_entropy_loss, op);
}

void cross_entropy_gradient(const Stream& stream, const CrossEntropyGradient& op) {
  const char* name = "cross_entropy_gradient";
  require_activation(name, op.dtype);
  require(name, op.rows >= 0 && op.classes > 0 && op.first_class >= 0, "size out of range");
  require_stride(name, op.row_stride, op.classes);
  require(name, op.softcap >= 0.0F, "softcap must be positive, or 0 for none");
  if (op.rows == 0) return;
  require(name, op.logits != nullptr && op.targets != nullptr, "null operand");
  check_state(name, op.state);
  dispatch<const CrossEntropyGradient&>(name, stream, cpu::cross_entropy_gradient,
                                        cuda_kernels().cross_entropy_gradient, op);
}

void cross_entropy_finish(const Stream& stream, const CrossEntropyFinish& op) {
  const char* name = "cross_entropy_finish";
  require_activation(name, op.dtype);
  require(name, op.rows >= 0 && op.hidden > 0, "size out of range");
  if (op.rows == 0) return;
  require(name,
          op.accumulated != nullptr && op.target_rows != nullptr && op.targets != nullptr &&
              op.dx != nullptr,
          "null operand");
  check_state(name, op.state);
  dispatch<const CrossEntropyFinish&>(name, stream, cpu::cross_entropy_finish,
                                      cuda_kernels().cross_entropy_finish, op);
}

}  // namespace poros
