// SPDX-License-Identifier: Apache-2.0
// list, verify and prune.
#include <algorithm>
#include <cerrno>
#include <ctime>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "model/aligned_bytes.hpp"
#include "model/nf4_cache.hpp"
#include "model/workers.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

/// Seconds since a file or folder was changed; nothing when there is none.
double age_s(const fs::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return 0;
  return std::difftime(std::time(nullptr), info.st_mtim.tv_sec);
}

std::string time_text(const fs::path& path) {
  struct stat info {};
  struct tm parts {};
  if (::stat(path.c_str(), &info) != 0 || ::gmtime_r(&info.st_mtim.tv_sec, &parts) == nullptr) {
    return "";
  }
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

/// Folders of the cache by name. Hidden ones are being built or thrown away.
std::vector<fs::path> folders(const fs::path& cache, bool hidden) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& item : fs::directory_iterator(cache, error)) {
    const std::string name = item.path().filename().string();
    const bool ours = name.starts_with(".building-") || name.starts_with(".damaged-");
    if (!item.is_directory(error) || item.is_symlink(error)) continue;
    if (hidden ? ours : !name.starts_with('.') && fs::exists(item.path() / "base.bin", error)) {
      found.push_back(item.path());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

CacheEntryInfo describe(const fs::path& folder) {
  CacheEntryInfo entry;
  entry.folder = folder;
  std::error_code error;
  for (const char* file : {"base.bin", "index.json"}) {
    const auto size = fs::file_size(folder / file, error);
    if (!error) entry.bytes += size;
  }
  entry.last_used = time_text(folder / "index.json");
  try {
    const CacheIndex index = read_cache_index(folder);
    entry.weights = index.weights;
    entry.precision = index.precision;
    entry.model_type = index.model_type;
    entry.source = index.source;
    entry.created = index.created;
    const auto size = fs::file_size(folder / "base.bin", error);
    if (error || size != index.file_bytes) entry.fault = "base.bin has another size";
  } catch (const Error& problem) {
    entry.fault = problem.what();
  }
  return entry;
}

constexpr const char* kAbandoned = "left over from a build that was stopped";
constexpr double kQuiet_s = 600;

bool is_abandoned(const fs::path& folder) {
  const fs::path file = folder / "base.bin";
  std::error_code error;
  const bool has_file = fs::exists(file, error);
  if (age_s(has_file ? file : folder) < kQuiet_s) return false;
  if (!has_file) return true;
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  // Where there are no locks the time alone counts.
  return !fd || ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

void remove_entry(CacheEntryInfo entry, std::vector<CacheEntryInfo>& removed) {
  std::error_code error;
  fs::remove_all(entry.folder, error);
  if (error) fail(Fault::io, "{}: {}", entry.folder.string(), error.message());
  removed.push_back(std::move(entry));
}

}  // namespace

std::vector<CacheEntryInfo> list_cache(const fs::path& cache_folder) {
  std::vector<CacheEntryInfo> entries;
  for (const fs::path& folder : folders(cache_folder, false)) entries.push_back(describe(folder));
  return entries;
}

std::string verify_cache_entry(const fs::path& entry, int threads) {
  try {
    const CacheIndex index = read_cache_index(entry);
    const fs::path file = entry / "base.bin";
    const UniqueFd fd = open_for_reading(file);
    std::vector<CachePart> parts = index.layers;
    parts.insert(parts.end(), index.end_parts.begin(), index.end_parts.end());
    run_tasks(static_cast<std::int64_t>(parts.size()), threads, [&](std::int64_t i) {
      constexpr std::uint64_t kPiece = std::uint64_t{8} << 20;
      const CachePart& part = parts[static_cast<std::size_t>(i)];
      AlignedBytes buffer(std::min(kPiece, part.bytes));
      Sha256 hash;
      for (std::uint64_t done = 0; done < part.bytes; done += kPiece) {
        const std::uint64_t here = std::min(kPiece, part.bytes - done);
        pread_exact(fd.get(), buffer.data(), here, part.offset + done, file);
        hash.update(buffer.data(), here);
      }
      if (hash.hex() != part.sha256) {
        const auto layer = static_cast<std::size_t>(i);
        fail(Fault::input, "{}: {} is damaged", file.string(),
             layer < index.layers.size()
                 ? fmt::format("layer {}", layer)
                 : fmt::format("tensor \"{}\"", index.ends[layer - index.layers.size()].name));
      }
    });
    return "";
  } catch (const Error& problem) {
    return problem.what();
  }
}

std::vector<CacheEntryInfo> unfinished_builds(const fs::path& cache_folder) {
  std::vector<CacheEntryInfo> found;
  for (const fs::path& folder : folders(cache_folder, true)) {
    CacheEntryInfo entry = describe(folder);
    entry.fault = is_abandoned(folder) ? kAbandoned : "being built";
    found.push_back(std::move(entry));
  }
  return found;
}

std::vector<CacheEntryInfo> remove_abandoned_builds(const fs::path& cache_folder) {
  std::vector<CacheEntryInfo> removed;
  for (CacheEntryInfo& entry : unfinished_builds(cache_folder)) {
    if (entry.fault == kAbandoned) remove_entry(std::move(entry), removed);
  }
  return removed;
}

std::vector<CacheEntryInfo> prune_cache(const fs::path& cache_folder, double unused_days) {
  constexpr double kDay = 86400;
  std::vector<CacheEntryInfo> removed = remove_abandoned_builds(cache_folder);
  for (CacheEntryInfo& entry : list_cache(cache_folder)) {
    const bool unused = unused_days >= 0 && age_s(entry.folder / "index.json") > unused_days * kDay;
    if (!entry.fault.empty() || unused) remove_entry(std::move(entry), removed);
  }
  return removed;
}

Json to_json(const CacheEntryInfo& entry) {
  return {{"folder", entry.folder.string()},
          {"weights", entry.weights},
          {"precision", entry.precision},
          {"model_type", entry.model_type},
          {"source", entry.source},
          {"created", entry.created},
          {"last_used", entry.last_used},
          {"bytes", entry.bytes},
          {"fault", entry.fault.empty() ? Json(nullptr) : Json(entry.fault)}};
}

}  // namespace poros
