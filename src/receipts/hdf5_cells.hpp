// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "receipts/campaign_store.hpp"
#include "receipts/hdf5_api.hpp"

namespace poros {

/// The table /cells: a row a cell. Missing numbers are NaN, a missing flag is -1.
[[nodiscard]] h5::Table cells_table(const Campaign& campaign);

}  // namespace poros
