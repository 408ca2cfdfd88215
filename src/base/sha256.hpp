// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace poros {

/// SHA-256 over bytes given piece by piece (OpenSSL's implementation).
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void update(const void* data, std::size_t bytes);
  void update(std::string_view text) { update(text.data(), text.size()); }
  /// Ends the computation: 64 lower-case hex digits. To be called once.
  [[nodiscard]] std::string hex();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

[[nodiscard]] std::string sha256_hex(std::string_view text);

/// @throws Error(Fault::io) when the file can't be read.
[[nodiscard]] std::string sha256_file(const std::filesystem::path& path);

}  // namespace poros
