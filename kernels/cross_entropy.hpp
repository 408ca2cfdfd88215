// SPDX-License-Identifier: Apache-2.0
// Cross-entropy over a vocabulary that is visited in chunks, so that logits never exist whole.
// Call order of the two-pass form: init; accumulate for each chunk in ascending order; loss;
// then gradient for each chunk (its logits made again). One-pass form: accumulate with
// `exponentials` and `rescale`, after which dX <- dX*rescale + exponentials @ W_chunk (f32), and
// finish turns the sum into the gradient.
#pragma once

#include <cstdint>

#include "kernels/device.hpp"
#include "kernels/dtype.hpp"

namespace poros {

/// Running state of the online softmax (Milakov and Gimelshein 2018), each f32 [rows].
struct CrossEntropyState {
  float* max = nullptr;           // of the logits seen (after the soft-cap)
  float* sum = nullptr;           // of exp(logit - max)
  float* target_logit = nullptr;  // after the soft-cap
};

/// max = -inf, sum = 0, target_logit = NaN (so that a target outside the vocabulary shows).
void cross_entropy_init(const Stream& stream, const CrossEntropyState& state, std::int64_t rows);

inline constexpr std::int64_t kCrossEntropyInPlace = 4096;

/// Takes classes first_class .. first_class + classes - 1 into the state. With softcap c > 0 a
/// logit l counts as c * tanh(l / c).
struct CrossEntropyAccumulate {
  const void* logits = nullptr;  // [rows, classes]
  const std::int32_t* targets =
      nullptr;  // [rows] class of the next token; negative: not supervised
  CrossEntropyState state = {};
  void* exponentials = nullptr;  // exp(l - new max) * dl/dlogit, [rows, classes] in dtype; may be
                                 // logits; or null
  float* rescale = nullptr;      // [rows] exp(old max - new max), 0 for the first chunk; or null
  std::int64_t rows = 0, classes = 0, first_class = 0;
  std::int64_t row_stride = 0;  // elements; 0: classes
  DType dtype = DType::f32;     // f32 or bf16
  float softcap = 0.0F;
  /// Exponentials are bf16 beside f32 logits. On CUDA they may take the logits' place, for at most
  /// kCrossEntropyInPlace classes: each row then begins where its logits did.
  bool round_exponentials = false;
};
void cross_entropy_accumulate(const Stream& stream, const CrossEntropyAccumulate& op);

/// row_loss = max + log(sum) - target_logit for supervised rows, 0 for others.
/// *total = (add_to_total ? *total : 0) + the sum of row_loss, in double and a fixed order; not
/// divided by anything.
struct CrossEntropyLoss {
  const std::int32_t* targets = nullptr;
  CrossEntropyState state = {};
  float* row_loss = nullptr;  // [rows]
  double* total = nullptr;    // one double, in memory of the stream's device
  bool add_to_total = false;
  std::int64_t rows = 0;
};
void cross_entropy_loss(const Stream& stream, const CrossEntropyLoss& op);

/// In place: logits -> (softmax - onehot(target)) * dl/dlogit * inv_supervised_tokens for
/// supervised rows, 0 for others.
struct CrossEntropyGradient {
  void* logits = nullptr;  // in: logits; out: gradient, in dtype. [rows, classes]
  const std::int32_t* targets = nullptr;
  CrossEntropyState state = {};  // final
  std::int64_t rows = 0, classes = 0, first_class = 0;
  std::int64_t row_stride = 0;
  DType dtype = DType::f32;
  float softcap = 0.0F;
  float inv_supervised_tokens = 0.0F;  // 1 / supervised tokens of the whole optimizer step
};
void cross_entropy_gradient(const Stream& stream, const CrossEntropyGradient& op);

/// One-pass form, last step: dx = inv_supervised_tokens * (accumulated / sum - cap' * head[target])
/// for supervised rows, 0 for others; cap' = 1 - (target_logit/softcap)^2 with softcap, else 1.
struct CrossEntropyFinish {
  const float* accumulated = nullptr;  // [rows, hidden]
  const void* target_rows = nullptr;   // [rows, hidden]: head[target] of each row, target_dtype
  const std::int32_t* targets = nullptr;
  CrossEntropyState state = {};
  void* dx = nullptr;  // [rows, hidden] in dtype
  std::int64_t rows = 0, hidden = 0;
  DType dtype = DType::f32;         // f32 or bf16
  DType target_dtype = DType::f32;  // f32, bf16 or f16
  float softcap = 0.0F;
  float inv_supervised_tokens = 0.0F;
};
void cross_entropy_finish(const Stream& stream, const CrossEntropyFinish& op);

}  // namespace poros
