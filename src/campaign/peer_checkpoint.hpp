// SPDX-License-Identifier: Apache-2.0
// The reference libraries read checkpoints. A model whose weights are synthetic has none, so one is
// written from the base that our own arms read: every arm computes with the same bits.
#pragma once

#include <filesystem>
#include <functional>

#include "spec/cell_spec.hpp"

namespace poros {

/// The folder that a library loads this cell's model from: `model_dir` for pretrained weights, else
/// an export of the quantised base in <cache>/checkpoints, made where it is missing.
/// @param making called once before an export is written
/// @throws Error(Fault::input) for a precision that no library reads back, Error(Fault::io)
[[nodiscard]] std::filesystem::path peer_checkpoint(const CellSpec& cell,
                                                    const std::filesystem::path& model_dir,
                                                    const std::filesystem::path& cache,
                                                    const std::function<void()>& making = {});

}  // namespace poros
