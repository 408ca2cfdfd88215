// SPDX-License-Identifier: Apache-2.0
// The start of a run: a new campaign folder, or an older one that the spec still fits.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/json.hpp"
#include "campaign/folder.hpp"
#include "campaign/plan.hpp"

namespace poros {

/// What a campaign keeps from its first run on (spec.json).
struct CampaignIdentity {
  std::string campaign_id;  // 16 hex digits, in every process's tag
  std::string created_at;
  std::int64_t threads = 1;  // CPU threads of a cell: part of the numerical plan
};

/// Looks at the folder and changes nothing, except that with `fresh` an older campaign is moved to
/// <dir>.<n>. @throws Error(Fault::input): made with another spec (lists the differing keys), held
/// by a running driver (with `fresh`), or a journal without its spec.json
void check_folder(const CampaignFolder& folder, const CampaignPlan& plan, bool fresh);

/// Writes spec.json where it is missing or says something else. The journal's lease must be held.
[[nodiscard]] CampaignIdentity write_identity(const CampaignFolder& folder,
                                              const CampaignPlan& plan);

/// Reads a spec.json: `spec` and `cells` are objects, and so is each cell.
/// @throws Error(Fault::input) naming file and key
[[nodiscard]] Json read_campaign_spec(const std::filesystem::path& file);

/// CPU threads that this process may use: POROS_THREADS, else the cores of its affinity mask.
[[nodiscard]] std::int64_t usable_threads();

}  // namespace poros
