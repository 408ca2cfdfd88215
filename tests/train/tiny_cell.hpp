// SPDX-License-Identifier: Apache-2.0
// A whole cell small enough for tests: a random Qwen2 model of seven layers (so that streamed
// blocks must give up their slots), a token file with a pattern to learn, and an initial adapter.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "cell/request.hpp"
#include "receipts/pass_record.hpp"

namespace poros {

class TinyCell {
 public:
  static constexpr std::int64_t kVocab = 128, kHidden = 64, kLayers = 7, kSeqLen = 32, kRows = 13;

  /// Writes model and token file into a new temporary folder.
  TinyCell();
  ~TinyCell();
  TinyCell(const TinyCell&) = delete;
  TinyCell& operator=(const TinyCell&) = delete;

  /// A complete request: 4 rows a step as batch x accumulation, learning rate 1e-2. Change
  /// request.cell and then call finish() on it.
  [[nodiscard]] CellRequest request(const std::string& method, std::int64_t steps);

  /// Writes the initial adapter that request.cell.lora describes and fills in adapter_dir, cell_key
  /// and a result_path of its own.
  void finish(CellRequest& request);

  /// The record at request.result_path.
  [[nodiscard]] static PassRecord record_of(const CellRequest& request);

  /// Runs the request in this process and reads its record.
  [[nodiscard]] PassRecord run(CellRequest& request);

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
  int results_ = 0;
};

}  // namespace poros
