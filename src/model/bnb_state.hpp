// SPDX-License-Identifier: Apache-2.0
// bitsandbytes' NF4 tensors in a checkpoint: weight (packed codes), weight.absmax,
// weight.quant_map, with double quantisation weight.nested_absmax and weight.nested_quant_map, and
// the JSON text weight.quant_state.bitsandbytes__nf4.
#pragma once

#include <set>
#include <string>

#include "model/config.hpp"
#include "model/safetensors.hpp"

namespace poros {

/// What a quant_state says, checked against the tensors beside it.
struct BnbState {
  bool double_quantised = false;
  float nested_offset = 0;
  std::string dtype;  // "bfloat16": what it was quantised from
  Checkpoint::Found codes, absmax, nested_absmax;
};

/// True when the config says that the checkpoint is quantised by bitsandbytes to 4 bits.
/// @throws Error(Fault::input) for every other quantization_config (8 bit, fp4, other methods).
[[nodiscard]] bool is_bnb_nf4(const ModelConfig& config);

/// True when `name` ("model.layers.0.self_attn.q_proj.weight") is stored as NF4.
[[nodiscard]] bool has_bnb_state(const Checkpoint& checkpoint, const std::string& name);

/// Reads and checks the state of a weight [rows, cols]: block sizes 64 and 256, the standard value
/// maps, sizes of all parts. Adds the names of all parts to `used`.
/// @throws Error(Fault::input)
[[nodiscard]] BnbState read_bnb_state(const Checkpoint& checkpoint, const std::string& name,
                                      std::int64_t rows, std::int64_t cols,
                                      std::set<std::string>& used);

}  // namespace poros
