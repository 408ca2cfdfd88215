// SPDX-License-Identifier: Apache-2.0
// One cell: a method, a model, a precision, a GPU type and settings. All that poros-cell and the
// Python runners need to know of a spec is in here.
#pragma once

#include <string>

#include "base/json.hpp"
#include "spec/spec.hpp"

namespace poros {

struct CellSpec {
  std::string method;
  ModelSpec model;
  std::string precision = "nf4";
  std::string device = "cuda";
  std::string protocol = "shared";
  HardwareSpec hardware;
  TrainingSpec training;
  LoraSpec lora;
  PorosSpec poros;  // counts for poros and resident
  PeerSpec peer;    // counts for the other methods
  /// What a sweep or an include has set, for people: "seq_len=2048". A label that expand() gives.
  std::string variant;
};

/// All fields, defaults included: what a cell is given to run.
[[nodiscard]] Json to_json(const CellSpec& cell);

/// Inverse of to_json. @throws Error(Fault::input) naming origin and key.
[[nodiscard]] CellSpec cell_spec_from_json(const Json& json, const std::string& origin);

/// What defines the work, keys at their default value left out (a new key with a default changes no
/// old hash); passes, timeouts, reporting, paths of output and labels (display_name, vram_gb,
/// pcie_gen, param_count_b) are not part of it. `poros` and `peer` count only for the arms that
/// read them.
[[nodiscard]] Json canonical_work(const CellSpec& cell);

/// sha256 of canonical_work's text: 64 hex digits.
[[nodiscard]] std::string cell_key(const CellSpec& cell);

/// Key of the comparison group: canonical_work without method, `poros` and `peer`.
[[nodiscard]] std::string group_key(const CellSpec& cell);

/// "qwen2.5-7b" from "Qwen/Qwen2.5-7B" or a display name: the {arch} of artifact file names.
[[nodiscard]] std::string model_slug(const ModelSpec& model);

}  // namespace poros
