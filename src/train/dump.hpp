// SPDX-License-Identifier: Apache-2.0
// Tensors of one step on disk, for the second run of a parity check.
#pragma once

#include <filesystem>

#include "train/optimizer.hpp"

namespace poros {

/// Writes the folder that receipts/parity.hpp describes: gradient, exp_avg, exp_avg_sq and
/// weight.safetensors (fp32, [rows, cols], PEFT tensor names) and scalars.safetensors (loss and
/// grad_norm, fp32, [1]). The folder is made; files in it are replaced. Buffers lie in host memory.
/// @throws Error(Fault::io)
void dump_step(const std::filesystem::path& folder, const FlatParameters& parameters, float loss,
               float grad_norm);

}  // namespace poros
