// SPDX-License-Identifier: Apache-2.0
// What the events of a training say of its settings and memory.
#pragma once

#include <optional>
#include <string>

#include "base/json.hpp"
#include "model/token_file.hpp"
#include "spec/cell_spec.hpp"
#include "spec/train_config.hpp"
#include "train/arm/session.hpp"

namespace poros {

/// The cell that trains as a config says; its method may be auto.
[[nodiscard]] CellSpec training_cell(const TrainConfig& config);

/// Data of the event setup.
[[nodiscard]] Json setup_facts(const TrainConfig& config, const Session& session,
                               const TokenFile& tokens, const std::optional<TokenFile>& validation);

/// Data of the event oom: what was asked for, held and free, and which settings need less.
[[nodiscard]] Json oom_facts(const TrainConfig& config, const Session& session,
                             const std::string& message);

}  // namespace poros
