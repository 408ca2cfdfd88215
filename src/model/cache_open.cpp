// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "kernels/nf4.hpp"
#include "model/aligned_bytes.hpp"
#include "model/cache_index.hpp"
#include "model/nf4_cache.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

class CachedBase final : public BaseStore {
 public:
  CachedBase(const fs::path& entry, std::shared_ptr<const BaseSource> source)
      : file_(entry / "base.bin"),
        source_(std::move(source)),
        index_(read_cache_index(entry)),
        checked_(index_.layers.size()) {
    if (index_.key != cache_key(source_->identity(), source_->precision().name)) {
      fail(Fault::input, "{}: holds another base", entry.string());
    }
    if (static_cast<std::int64_t>(index_.layers.size()) != architecture().layer_count()) {
      fail(Fault::input, "{}: has another number of layers", entry.string());
    }
    fd_ = open_for_reading(file_);
    struct stat info {};
    if (::fstat(fd_.get(), &info) != 0) fail_errno(Fault::io, file_.string());
    if (static_cast<std::uint64_t>(info.st_size) != index_.file_bytes) {
      fail(Fault::input, "{}: {} bytes, expected {}", file_.string(), info.st_size,
           index_.file_bytes);
    }
    // The time of use, for prune; a cache on a read-only file system simply has none.
    (void)::utimensat(AT_FDCWD, (entry / "index.json").c_str(), nullptr, 0);
  }

  const Architecture& architecture() const override { return source_->architecture(); }
  std::string weights() const override { return index_.weights; }
  const LayerLayout& layout(std::int64_t layer) const override {
    return index_.layouts.at(static_cast<std::size_t>(layer));
  }

  void read_layer(std::int64_t layer, std::byte* slab) const override {
    const auto i = static_cast<std::size_t>(layer);
    const CachePart& part = index_.layers.at(i);
    pread_exact(fd_.get(), slab, part.bytes, part.offset, file_);
    if (checked_[i].load(std::memory_order_acquire)) return;
    if (!matches(part, slab)) {
      LayerLayout again = source_->layout(layer);
      source_->build_layer(layer, again, slab);
      repair(part, slab, fmt::format("layer {}", layer));
    }
    checked_[i].store(true, std::memory_order_release);
  }

  EndTensor embedding() const override { return end(0); }
  EndTensor final_norm() const override { return end(1); }
  EndTensor head() const override { return end(index_.ends.size() == 3 ? 2 : 0); }

  std::map<std::string, double> bytes_by_storage() const override {
    std::map<std::string, double> bytes;
    const auto add = [&](const TensorPlace& place) {
      bytes[name_of(place.storage)] += static_cast<double>(stored_bytes(place));
    };
    for (const LayerLayout& layout : index_.layouts) {
      std::for_each(layout.tensors.begin(), layout.tensors.end(), add);
    }
    std::for_each(index_.ends.begin(), index_.ends.end(), add);
    return bytes;
  }

 private:
  static bool matches(const CachePart& part, const std::byte* bytes) {
    Sha256 hash;
    hash.update(bytes, part.bytes);
    return hash.hex() == part.sha256;
  }

  /// `bytes` were built again for a part that was damaged on the disk. When they are the right
  /// ones, the file is put right too, where it can be written.
  void repair(const CachePart& part, const std::byte* bytes, const std::string& what) const {
    if (!matches(part, bytes)) {
      fail(Fault::run,
           "{}: {} is damaged and can't be built again from its source; remove the folder {}",
           file_.string(), what, file_.parent_path().string());
    }
    const UniqueFd fd(::open(file_.c_str(), O_WRONLY | O_CLOEXEC));
    if (!fd) return;
    if (::pwrite(fd.get(), bytes, part.bytes, static_cast<off_t>(part.offset)) ==
        static_cast<ssize_t>(part.bytes)) {
      (void)::fsync(fd.get());
    }
  }

  EndTensor end(std::size_t i) const {
    const TensorPlace& place = index_.ends[i];
    const std::lock_guard lock(mutex_);
    AlignedBytes& bytes = ends_[i];
    if (bytes.data() == nullptr) {
      const CachePart& part = index_.end_parts[i];
      AlignedBytes fresh(part.bytes);
      pread_exact(fd_.get(), fresh.data(), part.bytes, part.offset, file_);
      if (!matches(part, fresh.data())) {
        constexpr std::array<End, 3> kEnds = {End::embedding, End::final_norm, End::head};
        source_->build_end(kEnds[i], 0, place.rows * place.cols, fresh.data());
        repair(part, fresh.data(), place.name);
      }
      bytes = std::move(fresh);
    }
    return {place.storage, place.rows, place.cols, bytes.data()};
  }

  fs::path file_;
  std::shared_ptr<const BaseSource> source_;
  CacheIndex index_;
  UniqueFd fd_;
  mutable std::vector<std::atomic<bool>> checked_;
  mutable std::mutex mutex_;
  mutable std::array<AlignedBytes, 3> ends_;
};

}  // namespace

CacheIndex read_cache_index(const fs::path& entry) {
  const fs::path file = entry / "index.json";
  return parse_cache_index(read_file(file, std::uint64_t{256} << 20), file.string());
}

std::unique_ptr<BaseStore> open_cache_entry(const fs::path& entry,
                                            std::shared_ptr<const BaseSource> source) {
  return std::make_unique<CachedBase>(entry, std::move(source));
}

}  // namespace poros
