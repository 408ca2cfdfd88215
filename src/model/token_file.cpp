// SPDX-License-Identifier: Apache-2.0
#include "model/token_file.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <type_traits>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/json.hpp"
#include "base/sha256.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kMagic = "POROSTOK";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHeaderBytes = 32, kAlignment = 64;
constexpr std::uint64_t kMaxFileBytes = std::uint64_t{16} << 30;

std::uint64_t little_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) {
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  }
  return value;
}

template <class T>
void append(std::string& text, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    text.push_back(static_cast<char>(value >> (8 * i) & 0xff));
  }
}

void check_rows(const TokenFile& t, const std::string& origin) {
  constexpr std::uint8_t kKnown =
      TokenFile::kSupervised | TokenFile::kDocumentStart | TokenFile::kPadding;
  const auto size = static_cast<std::size_t>(t.rows * t.seq_len);
  for (std::size_t i = 0; i < size; ++i) {
    const std::size_t row = i / static_cast<std::size_t>(t.seq_len);
    const std::size_t column = i % static_cast<std::size_t>(t.seq_len);
    const std::uint8_t f = t.flags[i];
    const auto refuse = [&](const std::string& what) {
      fail(Fault::input, "{}: row {}, token {}: {}", origin, row, column, what);
    };
    if (static_cast<std::int64_t>(t.ids[i]) >= t.vocab) {
      refuse(fmt::format("id {} is not below vocab_size {}", t.ids[i], t.vocab));
    }
    if ((f & ~kKnown) != 0) refuse(fmt::format("unknown flags {:#x}", f));
    const bool supervised = (f & TokenFile::kSupervised) != 0;
    if (column == 0 && (f & TokenFile::kDocumentStart) == 0) {
      refuse("a row's first token must start a document");
    }
    if (supervised && (f & TokenFile::kDocumentStart) != 0) {
      refuse("a document's first token can't be supervised (nothing predicts it)");
    }
    if (supervised && (f & TokenFile::kPadding) != 0) refuse("padding can't be supervised");
  }
}

}  // namespace

TokenFile read_token_file(const fs::path& path) {
  const std::string origin = path.string();
  const UniqueFd fd = open_for_reading(path);
  const std::uint64_t file_bytes = fs::file_size(path);
  std::string head(std::min<std::uint64_t>(file_bytes, kHeaderBytes), '\0');
  pread_exact(fd.get(), head.data(), head.size(), 0, path);
  const std::string_view bytes = head;
  if (bytes.size() < kHeaderBytes || bytes.substr(0, 8) != kMagic) {
    fail(Fault::input, "{}: not a token file", origin);
  }
  const std::uint64_t version = little_endian(bytes.substr(8, 4));
  if (version != kVersion) {
    fail(Fault::input, "{}: version {}, expected {}", origin, version, kVersion);
  }
  const std::uint64_t seq_len = little_endian(bytes.substr(12, 4));
  const std::uint64_t rows = little_endian(bytes.substr(16, 8));
  const std::uint64_t note_bytes = little_endian(bytes.substr(28, 4));
  TokenFile t;
  t.vocab = static_cast<std::int64_t>(little_endian(bytes.substr(24, 4)));
  std::uint64_t size = 0;
  if (seq_len == 0 || rows == 0 || t.vocab == 0) {
    fail(Fault::input, "{}: seq_len, rows and vocab_size must be above 0", origin);
  }
  const std::uint64_t ids_begin =
      (kHeaderBytes + note_bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (__builtin_mul_overflow(seq_len, rows, &size) || size > kMaxFileBytes ||
      ids_begin + 5 * size != file_bytes) {
    fail(Fault::input, "{}: {} bytes, but {} rows of {} tokens need {}", origin, file_bytes, rows,
         seq_len, size > kMaxFileBytes ? "far more" : std::to_string(ids_begin + 5 * size));
  }
  head.resize(ids_begin);
  pread_exact(fd.get(), head.data(), head.size(), 0, path);
  t.seq_len = static_cast<std::int64_t>(seq_len);
  t.rows = static_cast<std::int64_t>(rows);
  t.note = head.substr(kHeaderBytes, note_bytes);
  (void)parse_json(t.note, origin + ": note");
  // Straight into place: a file may take a good part of the memory.
  static_assert(std::endian::native == std::endian::little);
  t.ids.resize(size);
  t.flags.resize(size);
  pread_exact(fd.get(), t.ids.data(), 4 * size, ids_begin, path);
  pread_exact(fd.get(), t.flags.data(), size, ids_begin + 4 * size, path);
  check_rows(t, origin);
  Sha256 hash;
  hash.update(head);
  hash.update(t.ids.data(), 4 * size);
  hash.update(t.flags.data(), size);
  t.sha256 = hash.hex();
  return t;
}

std::string token_file_bytes(const TokenFile& t) {
  const auto size = static_cast<std::size_t>(t.rows * t.seq_len);
  if (t.ids.size() != size || t.flags.size() != size || size == 0 ||
      t.vocab > std::numeric_limits<std::uint32_t>::max()) {
    fail(Fault::run, "token file: {} ids and {} flags for {} rows of {} tokens", t.ids.size(),
         t.flags.size(), t.rows, t.seq_len);
  }
  check_rows(t, "token file");
  const std::string note = t.note.empty() ? "{}" : t.note;
  std::string bytes(kMagic);
  append(bytes, kVersion);
  append(bytes, static_cast<std::uint32_t>(t.seq_len));
  append(bytes, static_cast<std::uint64_t>(t.rows));
  append(bytes, static_cast<std::uint32_t>(t.vocab));
  append(bytes, static_cast<std::uint32_t>(note.size()));
  bytes += note;
  bytes.append((kAlignment - bytes.size() % kAlignment) % kAlignment, '\0');
  for (const std::uint32_t id : t.ids) append(bytes, id);
  bytes.append(reinterpret_cast<const char*>(t.flags.data()), size);
  return bytes;
}

}  // namespace poros
