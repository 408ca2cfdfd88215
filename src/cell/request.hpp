// SPDX-License-Identifier: Apache-2.0
// What a driver asks of a cell process (cell/protocol.hpp says what each key means).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/json.hpp"
#include "spec/cell_spec.hpp"

namespace poros {

struct CellRequest {
  std::string purpose = "timed";  // timed | parity
  CellSpec cell;
  std::string cell_key;
  std::int64_t pass = 0, attempt = 1;
  std::filesystem::path model_dir, tokens_path, adapter_dir, cache_dir, result_path;
  std::int64_t threads = 1;
  struct Dump {
    std::int64_t step = 0;
    std::filesystem::path dir;
  };
  std::optional<Dump> dump;
  std::optional<std::int64_t> max_steps;
};

[[nodiscard]] Json to_json(const CellRequest& request);

/// @throws Error(Fault::input) naming origin and key: missing, wrong type, another protocol
/// version, a cell_key that is not the cell's.
[[nodiscard]] CellRequest cell_request_from_json(const Json& json, const std::string& origin);

/// Reads a request file. @throws Error(Fault::input)
[[nodiscard]] CellRequest read_request(const std::filesystem::path& path);

}  // namespace poros
