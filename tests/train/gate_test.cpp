// SPDX-License-Identifier: Apache-2.0
// The bitwise gate in small, on the CPU.
#include "gate_tests.hpp"

namespace poros {

GateScale gate_scale() {
  return {.layers = 12,
          .hidden = 64,
          .intermediate = 128,
          .heads = 4,
          .kv_heads = 2,
          .vocab = 160,
          .short_seq_len = 16,
          .long_seq_len = 48,
          .steps = 3,
          .rank = 4,
          .compute_dtype = "fp32",
          .delay_s = 0.001};
}

bool gate_can_run() {
  return true;
}

}  // namespace poros
