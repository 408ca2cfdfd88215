// SPDX-License-Identifier: Apache-2.0
// Several drivers at work on one campaign: each writes a journal of its own,
// shards/<name>/results.jsonl, and gathering appends what they hold to the root journal. A gathered
// receipt names where it comes from: `shard`, `shard_seq` and `shard_sha256` (of its line there).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "receipts/journal.hpp"

namespace poros {

inline constexpr const char* kShardFolder = "shards";

/// Names of the shards that have a journal, sorted.
[[nodiscard]] std::vector<std::string> shard_names(const std::filesystem::path& dir);

/// dir/shards/<name>/results.jsonl. @throws Error(Fault::usage) when the name is no plain file name
[[nodiscard]] std::filesystem::path shard_journal(const std::filesystem::path& dir,
                                                  const std::string& name);

/// Every receipt of a campaign, gathered or not: those of the root journal, then those of each
/// shard that the root does not have yet. Their seq and epoch are those of their own journals.
/// @param but_not a shard that is left out, with what the root has of it
[[nodiscard]] std::vector<Receipt> all_receipts(const std::filesystem::path& dir,
                                                const std::string& but_not = "");

/// Receipts of shards that the root journal lacks.
[[nodiscard]] std::int64_t ungathered_receipts(const std::filesystem::path& dir);

/// Whether what a root journal has of a shard is what the shard's own journal says.
/// @returns how many receipts of the shard it has
/// @throws Error(Fault::input) where it is not
std::size_t check_shard(const std::vector<Receipt>& root, const std::string& shard,
                        const std::vector<Receipt>& source);

/// Appends to `root` what it lacks of `source`, the receipts of one journal from its first on.
/// @param shard the name that the appended receipts get
/// @returns the appended receipts, as they stand in `root`
/// @throws Error(Fault::input) where what `root` has of the shard is not what the source says
std::vector<Receipt> append_shard(JournalWriter& root, const std::string& shard,
                                  const std::vector<Receipt>& source);

/// One cell must be measured by one build of its program and on one model of GPU.
/// @throws Error(Fault::input) naming the first cell where receipts that count differ
void refuse_mixed_cells(const std::vector<Receipt>& receipts, const std::string& campaign);

}  // namespace poros
