// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/json.hpp"
#include "base/sha256.hpp"
#include "model/safetensors.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

std::uint64_t total_bytes(const TensorToWrite& tensor) {
  std::uint64_t bytes = bytes_of(tensor.type);
  for (const std::int64_t size : tensor.shape) bytes *= static_cast<std::uint64_t>(size);
  return bytes;
}

/// The order in which the reference writer lays tensors out: wide types first.
int rank_of(TensorType type) {
  constexpr std::array kOrder = {
      TensorType::u64, TensorType::i64,  TensorType::f64, TensorType::f32,    TensorType::u32,
      TensorType::i32, TensorType::bf16, TensorType::f16, TensorType::u16,    TensorType::i16,
      TensorType::f8,  TensorType::i8,   TensorType::u8,  TensorType::boolean};
  return static_cast<int>(std::find(kOrder.begin(), kOrder.end(), type) - kOrder.begin());
}

std::string header_text(const std::vector<TensorToWrite>& tensors) {
  // An ordered object: the reference writer lists metadata first, then tensors as they lie.
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};
  std::uint64_t offset = 0;
  for (const TensorToWrite& tensor : tensors) {
    const std::uint64_t end = offset + total_bytes(tensor);
    if (header.contains(tensor.name)) fail(Fault::run, "tensor \"{}\" twice", tensor.name);
    header[tensor.name]["dtype"] = name_of(tensor.type);
    header[tensor.name]["shape"] = tensor.shape;
    header[tensor.name]["data_offsets"] = {offset, end};
    offset = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

}  // namespace

std::string write_safetensors(const fs::path& path, std::vector<TensorToWrite> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorToWrite& a, const TensorToWrite& b) {
    return a.type != b.type ? rank_of(a.type) < rank_of(b.type) : a.name < b.name;
  });
  const std::string header = header_text(tensors);
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::string temporary = (folder / ("." + path.filename().string() + ".XXXXXX")).string();
  UniqueFd fd(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd) fail_errno(Fault::io, path.string() + ": create");
  try {
    Sha256 hash;
    const TensorToWrite::Sink put = [&](const void* data, std::uint64_t bytes) {
      hash.update(data, bytes);
      write_all(fd.get(), data, bytes, path);
    };
    std::array<unsigned char, 8> length{};
    for (std::size_t i = 0; i < 8; ++i) {
      length[i] = static_cast<unsigned char>(std::uint64_t{header.size()} >> (8 * i));
    }
    put(length.data(), length.size());
    put(header.data(), header.size());
    for (const TensorToWrite& tensor : tensors) {
      std::uint64_t written = 0;
      tensor.write([&](const void* data, std::uint64_t bytes) {
        written += bytes;
        put(data, bytes);
      });
      if (written != total_bytes(tensor)) {
        fail(Fault::run, "{}: tensor \"{}\": {} bytes written, {} expected", path.string(),
             tensor.name, written, total_bytes(tensor));
      }
    }
    if (::fchmod(fd.get(), 0644) != 0 || ::fsync(fd.get()) != 0) {
      fail_errno(Fault::io, path.string() + ": sync");
    }
    fd.reset();
    if (::rename(temporary.c_str(), path.c_str()) != 0) fail_errno(Fault::io, path.string());
    sync_folder(folder);
    return hash.hex();
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

}  // namespace poros
