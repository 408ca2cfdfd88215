// SPDX-License-Identifier: Apache-2.0
// TensorBoard's event files: TFRecords that hold Event messages in protobuf's wire format.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/files.hpp"

namespace poros {

class TensorboardWriter {
 public:
  /// Makes events.out.tfevents.<time>.<host>.<pid> in the folder. @throws Error(Fault::io)
  explicit TensorboardWriter(const std::filesystem::path& folder);

  /// Appends one event with a scalar a tag. A disk that is full ends the file, not the training.
  void scalars(std::int64_t step, const std::vector<std::pair<std::string, double>>& values);

 private:
  void append(const std::string& event);

  std::filesystem::path path_;
  UniqueFd fd_;
};

/// CRC-32C (Castagnoli), as in RFC 3720.
[[nodiscard]] std::uint32_t crc32c(std::string_view bytes);

}  // namespace poros
