// SPDX-License-Identifier: Apache-2.0
#include "kernels/philox.hpp"

#include "kernels/checks.hpp"
#include "kernels/philox_rounds.hpp"

namespace poros {

PhiloxCounter philox4x32_10(PhiloxCounter counter, PhiloxKey key) {
  philox_rounds(counter[0], counter[1], counter[2], counter[3], key[0], key[1]);
  return counter;
}

namespace {

void dropout(const char* name, const Stream& stream, const Dropout& op) {
  require_activation(name, op.dtype);
  require(name, op.rows >= 0 && op.cols > 0, "rows or cols out of range");
  require_stride(name, op.x_stride, op.cols);
  require_stride(name, op.y_stride, op.cols);
  require(name, op.p >= 0.0F && op.p < 1.0F, "p must lie in [0, 1)");
  require(name, op.layer < kMaxDropoutLayers && op.site < kMaxDropoutSites,
          "layer or site does not fit the counter");
  require(name, (op.micro_batch == nullptr) == (op.row_index == nullptr),
          "micro_batch and row_index come together");
  require(name, op.rows_per_micro_batch >= 0 && op.rows < (std::int64_t{1} << 32),
          "row does not fit the counter");
  if (op.rows == 0) return;
  require(name, op.x != nullptr && op.y != nullptr, "null operand");
  if (op.micro_batch == nullptr) {
    const std::int64_t batches =
        op.rows_per_micro_batch == 0
            ? 1
            : (op.rows + op.rows_per_micro_batch - 1) / op.rows_per_micro_batch;
    require(name, op.first_micro_batch + batches <= kMaxMicroBatches,
            "micro-batch does not fit the counter");
  } else if (stream.device == DeviceKind::cpu) {
    for (std::int64_t row = 0; row < op.rows; ++row) {
      require(name,
              op.micro_batch[row] >= 0 &&
                  op.micro_batch[row] < static_cast<std::int64_t>(kMaxMicroBatches),
              "micro-batch does not fit the counter");
    }
  }
  dispatch<const Dropout&>(name, stream, cpu::dropout, cuda_kernels().dropout, op);
}

}  // namespace

void dropout_forward(const Stream& stream, const Dropout& op) {
  dropout("dropout_forward", stream, op);
}
void dropout_backward(const Stream& stream, const Dropout& op) {
  dropout("dropout_backward", stream, op);
}

}  // namespace poros
