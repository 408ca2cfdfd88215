// SPDX-License-Identifier: Apache-2.0
// What is printed when a run ends.
#pragma once

#include <string>

#include "base/json.hpp"
#include "campaign/driver.hpp"

namespace poros {

/// 0, 1 (a cell ended in error, parity failed) or 75 (stopped on request).
[[nodiscard]] int exit_code_of(const CampaignResult& result);

/// A table, a line for each cell that has something to say, parity.
[[nodiscard]] std::string summary_table(const CampaignResult& result);

/// The same as one JSON object: {campaign, exit_code, stopped, passes_left, cells, parity}.
[[nodiscard]] Json summary_json(const CampaignResult& result, const std::string& dir);

/// Rows of cells as text, columns aligned; the first column to the left, the others to the right.
[[nodiscard]] std::string aligned(const std::vector<std::vector<std::string>>& rows);

}  // namespace poros
