// SPDX-License-Identifier: Apache-2.0
// Every field of a training's events.jsonl (train/event_log.hpp).
#pragma once

#include <string>

#include "base/json.hpp"

namespace poros {

[[nodiscard]] std::string events_markdown();
[[nodiscard]] Json events_json();

}  // namespace poros
