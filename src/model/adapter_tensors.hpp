// SPDX-License-Identifier: Apache-2.0
// Pieces of the adapter reader.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "model/adapter.hpp"
#include "model/lora_match.hpp"
#include "model/safetensors.hpp"

namespace poros {

/// Tensors of the file that no place has taken yet, by name.
using AdapterTensors = std::map<std::string, const TensorInfo*>;
/// What was read of one place.
struct PlacedLora {
  LoraPlace place;
  LoraSettings settings;
  LoraWeights weights;
};
/// In the order of adapters: by layer, then by index in LayerShape::linears.
using PlacedWeights = std::map<std::pair<std::int64_t, std::size_t>, PlacedLora>;

/// A finite matrix [rows, cols] of F32, BF16 or F16 as fp32. @throws Error(Fault::input)
[[nodiscard]] std::vector<float> read_matrix(const SafetensorsFile& file, const TensorInfo& tensor,
                                             std::int64_t rows, std::int64_t cols);

/// What a configuration names as parameters. @throws Error(Fault::input) unless each fits fused
/// experts or the weight of a linear
[[nodiscard]] std::vector<std::string> target_parameters(const Json& config,
                                                         const std::string& origin,
                                                         const Architecture& architecture);

/// True when one of the targets is `name` or its last dotted parts.
[[nodiscard]] bool is_target(const std::vector<std::string>& targets, const std::string& name);

/// Adapters of fused experts (PEFT's target_parameters, from peft 0.19 on), split into those of the
/// single experts' linears. For E experts and rank r, A is [E * r, in] seen as [E, r, in], and B
/// [out, r * E] seen as [out, r, E]; rows of gate_up's B are gate's, then up's. Gate and up of an
/// expert share one A there and get a copy each here: the same function, but trained on apart.
/// @return true when there were any
/// @throws Error(Fault::input)
bool read_fused_experts(const Json& config, const std::string& origin,
                        const std::vector<std::string>& targets, const Architecture& architecture,
                        const LoraSpec& lora, const SafetensorsFile& file, AdapterTensors& left,
                        PlacedWeights& placed);

/// Describes an adapter whose fused experts were split, in the way it is written again.
void describe_split_experts(const Architecture& architecture, LoraSpec lora,
                            const PlacedWeights& placed, Json& config);

}  // namespace poros
