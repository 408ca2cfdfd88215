// SPDX-License-Identifier: Apache-2.0
// The bitwise gate on a GPU: 20 steps of each run. Twelve layers, so that a budget can keep some
// blocks and stream others.
#include "gate_tests.hpp"
#include "train/device.hpp"

namespace poros {

GateScale gate_scale() {
  return {.layers = 12,
          .hidden = 512,
          .intermediate = 1408,
          .heads = 8,
          .kv_heads = 2,
          .vocab = 4000,
          .short_seq_len = 512,
          .long_seq_len = 2048,
          .steps = 20,
          .rank = 8,
          .cuda = true,
          .compute_dtype = "bf16",
          .delay_s = 0.0005};
}

bool gate_can_run() {
  register_cuda_device();
  return has_cuda();
}

}  // namespace poros
