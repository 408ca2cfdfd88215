// SPDX-License-Identifier: Apache-2.0
#include "model/safetensors.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <utility>

#include <sys/stat.h>

#include "base/error.hpp"
#include "base/json.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

struct TypeName {
  const char* name;
  TensorType type;
  std::uint64_t bytes;
};
constexpr std::array<TypeName, 15> kTypes = {{{"F64", TensorType::f64, 8},
                                              {"F32", TensorType::f32, 4},
                                              {"F16", TensorType::f16, 2},
                                              {"BF16", TensorType::bf16, 2},
                                              {"I64", TensorType::i64, 8},
                                              {"I32", TensorType::i32, 4},
                                              {"I16", TensorType::i16, 2},
                                              {"I8", TensorType::i8, 1},
                                              {"U64", TensorType::u64, 8},
                                              {"U32", TensorType::u32, 4},
                                              {"U16", TensorType::u16, 2},
                                              {"U8", TensorType::u8, 1},
                                              {"BOOL", TensorType::boolean, 1},
                                              {"F8_E4M3", TensorType::f8, 1},
                                              {"F8_E5M2", TensorType::f8, 1}}};

std::uint64_t header_length(int fd, std::uint64_t file_bytes, const fs::path& path) {
  if (file_bytes < 8) {
    fail(Fault::input, "{}: {} bytes are too few for a safetensors file", path.string(),
         file_bytes);
  }
  std::array<unsigned char, 8> raw{};
  pread_exact(fd, raw.data(), raw.size(), 0, path);
  std::uint64_t length = 0;
  for (std::size_t i = 8; i-- > 0;) length = length << 8 | raw[i];
  if (length > SafetensorsFile::kMaxHeaderBytes) {
    fail(Fault::input, "{}: header length {} is over the limit of {}", path.string(), length,
         SafetensorsFile::kMaxHeaderBytes);
  }
  if (length > file_bytes - 8) {
    fail(Fault::input, "{}: header length {} is more than the file holds ({} bytes)", path.string(),
         length, file_bytes);
  }
  return length;
}

/// A shape's number of elements times `element_bytes`; refuses negative sizes and overflow.
std::uint64_t checked_bytes(const std::vector<std::int64_t>& shape, std::uint64_t element_bytes,
                            const std::string& where) {
  std::uint64_t bytes = element_bytes;
  for (const std::int64_t size : shape) {
    if (size < 0) fail(Fault::input, "{}: negative size in shape", where);
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes) ||
        bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      fail(Fault::input, "{}: the shape's size overflows", where);
    }
  }
  return bytes;
}

std::uint64_t unsigned_number(const Json& value, const std::string& where) {
  if (!value.is_number_unsigned()) fail(Fault::input, "{}: not a whole number >= 0", where);
  return value.get<std::uint64_t>();
}

TensorInfo parse_tensor(const std::string& name, const Json& entry, std::uint64_t data_begin,
                        const std::string& path) {
  const std::string where = fmt::format("{}: tensor \"{}\"", path, name);
  if (!entry.is_object()) fail(Fault::input, "{}: not a JSON object", where);
  for (const auto& [key, value] : entry.items()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      fail(Fault::input, "{}: unknown key \"{}\"", where, key);
    }
  }
  TensorInfo tensor;
  tensor.name = name;
  const auto dtype = json_get<std::string>(entry, "dtype", where);
  const auto* type = std::find_if(kTypes.begin(), kTypes.end(),
                                  [&](const TypeName& known) { return dtype == known.name; });
  if (type == kTypes.end()) fail(Fault::input, "{}: unknown dtype \"{}\"", where, dtype);
  tensor.type = type->type;
  const auto shape = entry.find("shape");
  if (shape == entry.end() || !shape->is_array()) fail(Fault::input, "{}: no shape list", where);
  if (shape->size() > 16) fail(Fault::input, "{}: more than 16 dimensions", where);
  for (const Json& size : *shape) {
    const std::uint64_t value = unsigned_number(size, where + ": shape");
    if (!std::in_range<std::int64_t>(value)) {
      fail(Fault::input, "{}: the shape's size overflows", where);
    }
    tensor.shape.push_back(static_cast<std::int64_t>(value));
  }
  tensor.bytes = checked_bytes(tensor.shape, type->bytes, where);
  const auto offsets = entry.find("data_offsets");
  if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2) {
    fail(Fault::input, "{}: data_offsets must be two numbers", where);
  }
  const std::uint64_t begin = unsigned_number((*offsets)[0], where + ": data_offsets");
  const std::uint64_t end = unsigned_number((*offsets)[1], where + ": data_offsets");
  if (end < begin) fail(Fault::input, "{}: data_offsets end before they begin", where);
  if (end - begin != tensor.bytes) {
    fail(Fault::input, "{}: {} {} needs {} bytes, but data_offsets span {}", where, dtype,
         tensor.shape_text(), tensor.bytes, end - begin);
  }
  if (end > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) - data_begin) {
    fail(Fault::input, "{}: data_offsets overflow", where);
  }
  tensor.offset = data_begin + begin;
  return tensor;
}

}  // namespace

std::uint64_t bytes_of(TensorType type) {
  return std::find_if(kTypes.begin(), kTypes.end(),
                      [&](const TypeName& known) { return known.type == type; })
      ->bytes;
}

const char* name_of(TensorType type) {
  return std::find_if(kTypes.begin(), kTypes.end(),
                      [&](const TypeName& known) { return known.type == type; })
      ->name;
}

std::int64_t TensorInfo::elements() const {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

std::string TensorInfo::shape_text() const {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

SafetensorsFile::SafetensorsFile(fs::path path) : path_(std::move(path)) {
  fd_ = open_for_reading(path_);
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0) fail_errno(Fault::io, path_.string());
  file_bytes_ = static_cast<std::uint64_t>(info.st_size);
  const std::uint64_t length = header_length(fd_.get(), file_bytes_, path_);
  std::string text(length, '\0');
  pread_exact(fd_.get(), text.data(), text.size(), 8, path_);
  if (text.empty() || text.front() != '{') {
    fail(Fault::input, "{}: the header does not begin with '{{'", path_.string());
  }
  parse_header(text, 8 + length);
}

void SafetensorsFile::parse_header(const std::string& text, std::uint64_t data_begin) {
  const std::string path = path_.string();
  JsonLimits limits;
  limits.max_bytes = kMaxHeaderBytes;
  limits.max_depth = 8;
  const Json header = parse_json(text, path + ": header", limits);
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") {
      tensors_.emplace(name, parse_tensor(name, entry, data_begin, path));
      continue;
    }
    if (entry.is_null()) continue;
    if (!entry.is_object()) fail(Fault::input, "{}: __metadata__ is not an object", path);
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string()) {
        fail(Fault::input, "{}: __metadata__ \"{}\" is not a string", path, key);
      }
      metadata_.emplace(key, value.get<std::string>());
    }
  }
  std::vector<const TensorInfo*> by_offset;
  for (const auto& [name, tensor] : tensors_) by_offset.push_back(&tensor);
  std::sort(by_offset.begin(), by_offset.end(), [](const TensorInfo* a, const TensorInfo* b) {
    return std::pair(a->offset, a->bytes) < std::pair(b->offset, b->bytes);
  });
  std::uint64_t expected = data_begin;
  for (const TensorInfo* tensor : by_offset) {
    if (tensor->offset != expected) {
      fail(Fault::input, "{}: tensor \"{}\" begins at data byte {}, but {} was expected ({})", path,
           tensor->name, tensor->offset - data_begin, expected - data_begin,
           tensor->offset < expected ? "overlap" : "hole");
    }
    expected += tensor->bytes;
  }
  if (expected != file_bytes_) {
    fail(Fault::input, "{}: the tensors end at byte {}, but the file has {} ({})", path, expected,
         file_bytes_, expected > file_bytes_ ? "truncated file" : "bytes left over");
  }
}

void SafetensorsFile::read(const TensorInfo& tensor, std::uint64_t begin, std::uint64_t bytes,
                           void* into) const {
  if (begin > tensor.bytes || bytes > tensor.bytes - begin) {
    fail(Fault::run, "{}: read past the end of tensor \"{}\"", path_.string(), tensor.name);
  }
  pread_exact(fd_.get(), into, bytes, tensor.offset + begin, path_);
}

std::string SafetensorsFile::read(const TensorInfo& tensor) const {
  std::string content(tensor.bytes, '\0');
  read(tensor, 0, tensor.bytes, content.data());
  return content;
}

}  // namespace poros
