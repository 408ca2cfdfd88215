// SPDX-License-Identifier: Apache-2.0
// What a matrix adds to a spec: keys that are swept, cells beside the product, settings of some
// cells, cells that are left out.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "spec/cell_spec.hpp"
#include "spec/schema.hpp"

namespace poros {

/// Which cells a rule is for: a cell must have every value. Names: method, model (slug, hub id or
/// display name), precision, gpu, or a settable key.
using CellMatch = std::map<std::string, Json>;
using CellSettings = std::map<std::string, Json>;  // "training.seq_len" -> value

/// The key of the schema that a cell may be set by, or nullptr: a key of training, lora, poros,
/// peers.<method>, or hardware.vram_cap_mb, model.revision, model.weights, that counts for the
/// work.
[[nodiscard]] const SchemaKey* settable_key(const std::string& path);
/// All of them, for messages.
[[nodiscard]] std::vector<std::string> settable_keys();

/// Sets one key of a cell; a key of another method's peers changes nothing.
void apply_setting(CellSpec& cell, const std::string& path, const Json& value);

/// The cell's value of a settable key; null for a key of another method's peers.
[[nodiscard]] Json setting_of(const CellSpec& cell, const std::string& path);

[[nodiscard]] bool matches(const CellSpec& cell, const CellMatch& match);

/// "seq_len=2048, block_size=4"
[[nodiscard]] std::string settings_text(const CellSettings& settings);

/// What single values of a cell can't show: what is wrong with them together, or nothing.
[[nodiscard]] std::string cell_complaint(const CellSpec& cell);

}  // namespace poros
