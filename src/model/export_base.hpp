// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "model/base_store.hpp"
#include "model/config.hpp"

namespace poros {

/// Writes a base as a checkpoint that transformers + bitsandbytes load with the same bits:
/// model.safetensors (NF4 linears in bitsandbytes' format, all else in 16 bit) and config.json (the
/// given one, with a quantization_config where anything is NF4). For a base quantised from the same
/// 16-bit checkpoint on a CPU, model.safetensors equals bitsandbytes' own file byte for byte.
/// Experts are written dequantised to bf16, under the names of single experts: transformers fuses
/// them into parameters that bitsandbytes doesn't quantise. Of a multimodal checkpoint the text
/// part is written alone, as the gemma3_text model that it is.
/// @returns the sha256 of model.safetensors
/// @throws Error(Fault::io)
std::string export_base(const BaseStore& base, const ModelConfig& config,
                        const std::filesystem::path& folder);

}  // namespace poros
