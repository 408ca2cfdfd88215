// SPDX-License-Identifier: Apache-2.0
// `poros-cell run`: one pass of a cell of the arms poros and resident.
#pragma once

#include <functional>

#include "cell/request.hpp"

namespace poros {

/// Runs the request to its end and writes its PassRecord to request.result_path, whatever happened:
/// a failure is a result too. Phases and steps go to the event pipe named by kEventFdVariable.
/// @param stop_requested asked before each step: true ends the pass as error/drained
/// @returns 0, or kCellSkipped where the arm can't run here
/// @throws Error when the result can't be written, or the event descriptor is none
int run_request(const CellRequest& request, const std::function<bool()>& stop_requested);

}  // namespace poros
