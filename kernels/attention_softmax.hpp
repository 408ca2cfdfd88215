// SPDX-License-Identifier: Apache-2.0
// Masked softmax of row-blocked attention: a block of query rows against all keys it can see.
// Memory is block rows x keys, linear in the sequence.
#pragma once

#include <cstdint>

#include "kernels/device.hpp"
#include "kernels/dtype.hpp"

namespace poros {

/// Which keys a query sees. Query row a of the block is token i = first_query + a, key column b is
/// token j = first_key + b, both counted in the sequence (or sweep) that `documents` describes.
/// i sees j iff documents[i] == documents[j] >= 0, j <= i, and window == 0 or i - j < window.
/// A negative document id is padding: it sees nothing and is seen by nothing.
struct AttentionMask {
  std::int64_t first_query = 0, first_key = 0;
  std::int64_t window = 0;                  // keys a query sees, itself included; 0: all earlier
  const std::int32_t* documents = nullptr;  // [tokens]; null: one document
};

/// s = scale * scores; with softcap c > 0, s = c * tanh(s / c); probabilities = softmax of s over
/// the visible keys, exactly 0 elsewhere; a row that sees nothing is all 0, its logsumexp -inf.
/// `batch` matrices (heads) share mask and shape; matrix b begins at scores + b*matrix_stride.
struct AttentionSoftmaxForward {
  float* scores = nullptr;  // in: raw q.k; out: probabilities f32. [batch, queries, keys]
  void* rounded = nullptr;  // a copy of the probabilities in rounded_dtype, same strides; or null
  float* logsumexp = nullptr;  // [batch, queries] of s; null: not stored
  std::int64_t batch = 1, queries = 0, keys = 0;
  std::int64_t row_stride = 0;     // elements; 0: keys
  std::int64_t matrix_stride = 0;  // elements; 0: queries*row_stride
  AttentionMask mask = {};
  float scale = 1.0F;
  float softcap = 0.0F;
  DType rounded_dtype = DType::bf16;
};
void attention_softmax_forward(const Stream& stream, const AttentionSoftmaxForward& op);

/// ds = p * (dp - sum_keys(p * dp)) * (1 - (s/softcap)^2) * scale: the gradient of the raw scores.
/// With softcap, s is taken back from log(p) + logsumexp.
struct AttentionSoftmaxBackward {
  const float* probabilities = nullptr;  // p, f32, from the forward
  float* gradient = nullptr;             // in: dp; out: ds, f32. Same shape and strides as p
  void* rounded = nullptr;               // a copy of ds in rounded_dtype, same strides; or null
  const float* logsumexp = nullptr;      // [batch, queries]; needed with softcap only
  std::int64_t batch = 1, queries = 0, keys = 0;
  std::int64_t row_stride = 0, matrix_stride = 0;
  float scale = 1.0F;
  float softcap = 0.0F;
  DType rounded_dtype = DType::bf16;
};
void attention_softmax_backward(const Stream& stream, const AttentionSoftmaxBackward& op);

}  // namespace poros
