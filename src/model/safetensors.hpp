// SPDX-License-Identifier: Apache-2.0
// safetensors files (huggingface.co/docs/safetensors): u64 little-endian header length, JSON
// header, then data. Read by pread, never mapped: a file that shrinks while it is read gives an
// error, not a SIGBUS. A header is refused unless every rule of the format holds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/files.hpp"

namespace poros {

enum class TensorType { f64, f32, f16, bf16, i64, i32, i16, i8, u64, u32, u16, u8, boolean, f8 };

/// Bytes of one element.
[[nodiscard]] std::uint64_t bytes_of(TensorType type);
/// "BF16".
[[nodiscard]] const char* name_of(TensorType type);

/// One tensor of a file.
struct TensorInfo {
  std::string name;
  TensorType type = TensorType::f32;
  std::vector<std::int64_t> shape;
  std::uint64_t offset = 0;  // of its first byte, from the beginning of the file
  std::uint64_t bytes = 0;
  [[nodiscard]] std::int64_t elements() const;
  /// "[4096, 1024]".
  [[nodiscard]] std::string shape_text() const;
};

/// One open safetensors file.
class SafetensorsFile {
 public:
  static constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

  /// Opens the file and checks its header: length, JSON without duplicate keys, known dtypes,
  /// shapes without overflow, data offsets sorted without hole or overlap up to the end of the
  /// file.
  /// @throws Error(Fault::input) naming the path and the broken rule.
  explicit SafetensorsFile(std::filesystem::path path);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }
  [[nodiscard]] std::uint64_t file_bytes() const { return file_bytes_; }

  /// Reads `bytes` of a tensor from its byte `begin` on. Threads may call it at once.
  /// @throws Error(Fault::io) when the file was truncated since it was opened.
  void read(const TensorInfo& tensor, std::uint64_t begin, std::uint64_t bytes, void* into) const;
  /// The whole tensor's bytes.
  [[nodiscard]] std::string read(const TensorInfo& tensor) const;

 private:
  void parse_header(const std::string& text, std::uint64_t data_begin);

  std::filesystem::path path_;
  UniqueFd fd_;
  std::uint64_t file_bytes_ = 0;
  std::map<std::string, TensorInfo> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// The tensors of a model folder: model.safetensors, or the shards that
/// model.safetensors.index.json names.
class Checkpoint {
 public:
  /// @throws Error(Fault::input) when there is neither, when a shard named by the index is missing,
  /// lies outside the folder, or holds other tensors than the index says.
  explicit Checkpoint(const std::filesystem::path& folder);

  struct Found {
    const SafetensorsFile* file = nullptr;
    const TensorInfo* tensor = nullptr;
    explicit operator bool() const { return tensor != nullptr; }
  };
  /// Nothing found: an empty Found.
  [[nodiscard]] Found find(const std::string& name) const;
  /// @throws Error(Fault::input) naming folder and tensor when it is missing.
  [[nodiscard]] Found at(const std::string& name) const;
  [[nodiscard]] std::vector<std::string> names() const;
  [[nodiscard]] const std::vector<std::unique_ptr<SafetensorsFile>>& files() const {
    return files_;
  }

 private:
  std::filesystem::path folder_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Found> tensors_;
};

/// A tensor to be written. `write` gives its bytes, piece by piece, to the function it gets.
struct TensorToWrite {
  using Sink = std::function<void(const void* data, std::uint64_t bytes)>;
  std::string name;
  TensorType type = TensorType::f32;
  std::vector<std::int64_t> shape;
  std::function<void(const Sink&)> write;
};

/// Writes a file as the reference writer does (tensors by type, wide ones first, then name; header
/// padded to 8 bytes; metadata {"format": "pt"}), durably: a temporary name, fsync, rename.
/// @returns the sha256 of the file
/// @throws Error(Fault::io); Error(Fault::run) when `write` gave another number of bytes than its
/// shape says.
std::string write_safetensors(const std::filesystem::path& path,
                              std::vector<TensorToWrite> tensors);

}  // namespace poros
