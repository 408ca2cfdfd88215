// SPDX-License-Identifier: Apache-2.0
#include "kernels/rotary.hpp"

#include <cmath>

#include "kernels/checks.hpp"

namespace poros {

void build_rotary_table(std::span<const float> inv_freq, float attention_factor,
                        std::int64_t positions, float* cos, float* sin) {
  const auto half = static_cast<std::int64_t>(inv_freq.size());
  for (std::int64_t p = 0; p < positions; ++p) {
    for (std::int64_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(p) * inv_freq[static_cast<std::size_t>(i)];
      cos[p * half + i] =
          static_cast<float>(std::cos(static_cast<double>(angle))) * attention_factor;
      sin[p * half + i] =
          static_cast<float>(std::sin(static_cast<double>(angle))) * attention_factor;
    }
  }
}

namespace {

bool check(const char* name, const Stream& stream, const Rotary& op) {
  require_activation(name, op.dtype);
  require(name, op.rows >= 0 && op.heads > 0 && op.head_dim > 0, "rows, heads or head_dim");
  require(name, op.rotary_dim > 0 && op.rotary_dim % 2 == 0 && op.rotary_dim <= op.head_dim,
          "rotary_dim must be even and at most head_dim");
  require_stride(name, op.row_stride, op.heads * op.head_dim);
  require_stride(name, op.source_stride, op.heads * op.head_dim);
  require(name, op.source == nullptr || op.rotary_dim == op.head_dim,
          "with a source all dimensions have to turn");
  if (op.rows == 0) return false;
  require(name,
          op.x != nullptr && op.positions != nullptr && op.cos != nullptr && op.sin != nullptr,
          "null operand");
  if (stream.device == DeviceKind::cpu) {
    for (std::int64_t row = 0; row < op.rows; ++row) {
      if (op.positions[row] < 0 || op.positions[row] >= op.table_positions) {
        fail(Fault::run, "kernel {}: position {} of row {} is outside the table of {} positions",
             name, op.positions[row], row, op.table_positions);
      }
    }
  }
  return true;
}

}  // namespace

void rotary_forward(const Stream& stream, const Rotary& op) {
  const char* name = "rotary_forward";
  if (!check(name, stream, op)) return;
  dispatch<const Rotary&>(name, stream, cpu::rotary_forward, cuda_kernels().rotary_forward, op);
}

void rotary_backward(const Stream& stream, const Rotary& op) {
  const char* name = "rotary_backward";
  if (!check(name, stream, op)) return;
  dispatch<const Rotary&>(name, stream, cpu::rotary_backward, cuda_kernels().rotary_backward, op);
}

}  // namespace poros
