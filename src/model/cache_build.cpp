// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "model/aligned_bytes.hpp"
#include "model/cache_index.hpp"
#include "model/nf4_cache.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

constexpr std::uint64_t kPartAlignment = 4096;
// Ends are built and written in pieces of about this many bytes.
constexpr std::int64_t kEndPieceBytes = std::int64_t{64} << 20;

/// Appends parts to base.bin.
class PartWriter {
 public:
  explicit PartWriter(fs::path path)
      : path_(std::move(path)),
        fd_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644)) {
    if (!fd_) fail_errno(Fault::io, path_.string() + ": create");
    // Tells prune that somebody is at it, until this process ends in whatever way.
    (void)::flock(fd_.get(), LOCK_EX | LOCK_NB);
  }

  void begin() {
    static constexpr std::array<char, kPartAlignment> kZeros{};
    const std::uint64_t rest = (kPartAlignment - end_ % kPartAlignment) % kPartAlignment;
    write_all(fd_.get(), kZeros.data(), rest, path_);
    end_ += rest;
    part_ = {end_, 0, ""};
    hash_ = std::make_unique<Sha256>();
  }
  void append(const std::byte* data, std::uint64_t bytes) {
    write_all(fd_.get(), data, bytes, path_);
    hash_->update(data, bytes);
    end_ += bytes;
    part_.bytes += bytes;
  }
  CachePart finish() {
    part_.sha256 = hash_->hex();
    return part_;
  }
  std::uint64_t sync() {
    if (::fsync(fd_.get()) != 0) fail_errno(Fault::io, path_.string() + ": sync");
    return end_;
  }

 private:
  fs::path path_;
  UniqueFd fd_;
  std::uint64_t end_ = 0;
  CachePart part_;
  std::unique_ptr<Sha256> hash_;
};

CacheIndex write_parts(const BaseSource& source, const fs::path& file,
                       const BuildProgress& progress) {
  const Architecture& architecture = source.architecture();
  CacheIndex index;
  std::vector<End> ends = {End::embedding, End::final_norm};
  if (!architecture.tied_embeddings) ends.push_back(End::head);
  const std::int64_t total = architecture.layer_count() + static_cast<std::int64_t>(ends.size());
  std::int64_t done = 0;
  const auto tell = [&] {
    if (progress) progress(++done, total);
  };
  PartWriter writer(file);
  AlignedBytes slab;
  for (std::int64_t layer = 0; layer < architecture.layer_count(); ++layer) {
    LayerLayout layout = source.layout(layer);
    slab.resize(layout.bytes);
    source.build_layer(layer, layout, slab.data());
    writer.begin();
    writer.append(slab.data(), layout.bytes);
    index.layers.push_back(writer.finish());
    index.layouts.push_back(std::move(layout));
    tell();
  }
  for (const End end : ends) {
    const TensorPlace place = source.end_place(end);
    const auto size = static_cast<std::int64_t>(bytes_per_element(place.storage));
    const std::int64_t count = place.rows * place.cols;
    const std::int64_t piece = kEndPieceBytes / size;
    writer.begin();
    for (std::int64_t begin = 0; begin < count; begin += piece) {
      const std::int64_t here = std::min(piece, count - begin);
      slab.resize(static_cast<std::uint64_t>(here * size));
      source.build_end(end, begin, here, slab.data());
      writer.append(slab.data(), static_cast<std::uint64_t>(here * size));
    }
    index.end_parts.push_back(writer.finish());
    index.ends.push_back(place);
    tell();
  }
  index.file_bytes = writer.sync();
  return index;
}

}  // namespace

std::string cache_key(const std::string& identity, const std::string& precision) {
  return sha256_hex(fmt::format("poros base {} {} {}", kQuantiserVersion, precision, identity));
}

std::string cache_entry_name(const std::string& model_type, const std::string& precision,
                             const std::string& key) {
  return fmt::format("{}-{}-{}", model_type, precision, key.substr(0, 16));
}

fs::path build_cache_entry(const BaseSource& source, const fs::path& cache_folder,
                           const std::string& from, const BuildProgress& progress) {
  std::error_code error;
  fs::create_directories(cache_folder, error);
  if (error) fail(Fault::io, "{}: {}", cache_folder.string(), error.message());
  try {
    (void)remove_abandoned_builds(cache_folder);  // of a large model each is tens of gigabytes
  } catch (const Error&) {                        // another user's: no reason not to build
  }
  const std::string key = cache_key(source.identity(), source.precision().name);
  const fs::path entry = cache_folder / cache_entry_name(source.architecture().model_type,
                                                         source.precision().name, key);
  std::string temporary = (cache_folder / (".building-" + key.substr(0, 16) + "-XXXXXX")).string();
  if (::mkdtemp(temporary.data()) == nullptr) {
    fail_errno(Fault::io, cache_folder.string() + ": create");
  }
  const fs::path folder = temporary;
  try {
    CacheIndex index = write_parts(source, folder / "base.bin", progress);
    index.key = key;
    index.weights = source.weights();
    index.precision = source.precision().name;
    index.model_type = source.architecture().model_type;
    index.source = from;
    index.created = utc_now();
    write_file_durably(folder / "index.json", cache_index_text(index));
    if (::chmod(folder.c_str(), 0755) != 0) fail_errno(Fault::io, folder.string());
    sync_folder(folder);
    if (::rename(folder.c_str(), entry.c_str()) != 0) {
      // Another builder was first: its entry has the same bytes.
      if (errno != ENOTEMPTY && errno != EEXIST) fail_errno(Fault::io, entry.string());
      fs::remove_all(folder);
    }
    sync_folder(cache_folder);
    return entry;
  } catch (...) {
    fs::remove_all(folder, error);
    throw;
  }
}

}  // namespace poros
