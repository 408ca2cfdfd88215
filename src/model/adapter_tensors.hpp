// SPDX-License-Identifier: Apache-2.0
// Pieces of the adapter reader.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "model/adapter.hpp"
#include "model/safetensors.hpp"

namespace poros {

/// Tensors of the file that no place has taken yet, by name.
using AdapterTensors = std::map<std::string, const TensorInfo*>;
/// What was read, in the order of adapters: by layer, then by index in LayerShape::linears.
using PlacedWeights =
    std::map<std::pair<std::int64_t, std::size_t>, std::pair<LoraPlace, LoraWeights>>;

/// A finite matrix [rows, cols] of F32, BF16 or F16 as fp32. @throws Error(Fault::input)
[[nodiscard]] std::vector<float> read_matrix(const SafetensorsFile& file, const TensorInfo& tensor,
                                             std::int64_t rows, std::int64_t cols);

/// Adapters of fused experts (PEFT's target_parameters, from peft 0.19 on), split into those of the
/// single experts' linears. For E experts and rank r, A is [E * r, in] seen as [E, r, in], and B
/// [out, r * E] seen as [out, r, E]; rows of gate_up's B are gate's, then up's. Gate and up of an
/// expert share one A there and get a copy each here: the same function, but trained on apart.
/// @throws Error(Fault::input)
void read_fused_experts(const Json& config, const std::string& origin,
                        const Architecture& architecture, const LoraSpec& lora,
                        const SafetensorsFile& file, AdapterTensors& left, PlacedWeights& placed);

}  // namespace poros
