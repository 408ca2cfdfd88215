// SPDX-License-Identifier: Apache-2.0
// campaign.h5: everything that journal and artifacts hold, in one file for h5py and pandas. It is
// derived: deleting it loses nothing. Layout:
//   /                attributes format, version, spec_id, spec_sha256, receipts_sha256, environment
//   /spec            spec.json's text
//   /cells           table, a row a cell: key, method, model, status, numbers (missing: NaN);
//                    attribute `units`, one entry a column
//   /receipts        each receipt's full JSON, a row a line of results.jsonl
//   /series/<cell key>/<pass>.<attempt>
//                    table, a row a step: step and the measured columns; attributes units, method,
//                    model_id, status
//   /files/index     table: kind, path, sha256, key, seq, series, offset, bytes; /files/data: the
//                    texts (artifacts of cells and parity; pass records without their series)
//   /problems        what was missing or altered when the store was made
// Compressed and checksummed by chunk. No times are stored: equal input gives equal bytes.
//   import h5py, pandas
//   with h5py.File("campaign.h5") as f:
//       cells = pandas.DataFrame(f["cells"][:])
// The file format is that of HDF5 1.10 (its metadata carries checksums).
#pragma once

#include <filesystem>
#include <functional>
#include <vector>

#include "receipts/campaign_store.hpp"

namespace poros {

/// Gives a cell's pass records, so that a large campaign need not be in memory as a whole.
using PassLoader = std::function<std::vector<CampaignPass>(const CampaignCell&)>;

/// Writes the store beside its final name (`.<name>.tmp`), syncs it and renames it into place.
/// @throws Error(Fault::io) naming the file, with the text of HDF5's error stack.
/// @param loader instead of the cells' own `passes`; campaign.problems is read after the last call
void write_campaign_h5(const std::filesystem::path& file, const Campaign& campaign,
                       const PassLoader& loader = {});

/// @throws Error(Fault::input) when the file is no campaign store, is cut off or damaged.
[[nodiscard]] Campaign read_campaign_h5(const std::filesystem::path& file);

/// Rebuilds dir/campaign.h5 from dir's journal and artifacts, cell by cell.
/// @returns the campaign that it read, without pass records
Campaign gather(const std::filesystem::path& dir);

}  // namespace poros
