// SPDX-License-Identifier: Apache-2.0
// The tests of the bitwise gate, for a program that says how large its runs are (gate_scale) and
// whether they can run here (gate_can_run).
#pragma once

#include "bitwise_gate.hpp"

namespace poros {

[[nodiscard]] GateScale gate_scale();
[[nodiscard]] bool gate_can_run();

}  // namespace poros
