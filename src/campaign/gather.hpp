// SPDX-License-Identifier: Apache-2.0
// Joining what several drivers have written, into the campaign's root journal and campaign.h5.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "receipts/campaign_store.hpp"

namespace poros {

struct GatherOptions {
  bool allow_mixed = false;  // cells measured by several builds, or on several models of GPU
};

struct Gathered {
  Campaign campaign;          // without pass records
  std::int64_t appended = 0;  // receipts that the root journal did not have
};

/// Appends the receipts of a campaign's shards to its root journal and makes campaign.h5 anew.
/// Without shards it writes campaign.h5 alone, and a driver may be at work meanwhile.
/// @throws Error(Fault::input): damaged, mixed or altered receipts; a driver writes the root
/// journal
[[nodiscard]] Gathered gather_shards(const std::filesystem::path& dir,
                                     const GatherOptions& options = {});

/// Joins campaigns of one spec that were measured in several folders (on several machines) into
/// `out`: a new folder, or an earlier join of them. Records are copied; the sources stay as they
/// are. @throws Error(Fault::input) where the specs differ (names the keys), or a file of a source
/// and of `out` differ under one name
[[nodiscard]] Gathered gather_campaigns(const std::vector<std::filesystem::path>& sources,
                                        const std::filesystem::path& out,
                                        const GatherOptions& options = {});

}  // namespace poros
