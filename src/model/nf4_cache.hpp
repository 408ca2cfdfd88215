// SPDX-License-Identifier: Apache-2.0
// The content-addressed cache of bases. A folder `<model_type>-<precision>-<16 hex of the key>`
// holds
//   base.bin    one slab a layer, then the ends; each begins at a multiple of 4096 bytes
//   index.json  {"body": {...}, "sha256": of body's text}: layout, nested offsets and sha256 of
//   each
//               part, the model's config, where it came from
// The key is the sha256 of the source's identity (checkpoint digest, or seed and shape), precision
// and kQuantiserVersion. An entry is made under a temporary name and renamed when it is whole and
// on the disk; of several builders the first rename wins. index.json is checked whenever an entry
// is opened, each part of base.bin when it is first read.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "model/base_source.hpp"
#include "model/base_store.hpp"

namespace poros {

/// To be raised when the same checkpoint would give other bytes.
inline constexpr int kQuantiserVersion = 1;

/// Told after each part that was built: done parts of all.
using BuildProgress = std::function<void(std::int64_t done, std::int64_t total)>;

/// One slab or end in base.bin.
struct CachePart {
  std::uint64_t offset = 0, bytes = 0;
  std::string sha256;
};

/// index.json, parsed and checked.
struct CacheIndex {
  std::string key, weights, precision, model_type, source, created;
  std::uint64_t file_bytes = 0;
  std::vector<LayerLayout> layouts;  // one a layer
  std::vector<CachePart> layers;     // one a layer
  std::vector<TensorPlace> ends;     // embedding, final norm, head where it is not the embedding
  std::vector<CachePart> end_parts;
};

/// @throws Error(Fault::input) when the folder holds no whole, undamaged index.
[[nodiscard]] CacheIndex read_cache_index(const std::filesystem::path& entry);

/// Name of the entry's folder for a key.
[[nodiscard]] std::string cache_entry_name(const std::string& model_type,
                                           const std::string& precision, const std::string& key);
[[nodiscard]] std::string cache_key(const std::string& identity, const std::string& precision);

/// Builds an entry from a source. Peak memory: one layer's slab and, a thread, about 8 MiB.
/// @param from    for people: the checkpoint's folder
/// @returns the entry's folder
/// @throws Error(Fault::io) (disk full, permission): nothing is left behind.
std::filesystem::path build_cache_entry(const BaseSource& source,
                                        const std::filesystem::path& cache_folder,
                                        const std::string& from, const BuildProgress& progress);

/// Opens an entry. A part whose bytes don't match their sha256 is built again from `source` and put
/// right in the file. @throws Error(Fault::input) when the index is damaged or base.bin has another
/// size; Error(Fault::run) from read_layer when a part is damaged and the source gives other bytes.
[[nodiscard]] std::unique_ptr<BaseStore> open_cache_entry(const std::filesystem::path& entry,
                                                          std::shared_ptr<const BaseSource> source);

/// What `poros cache list` shows of one entry.
struct CacheEntryInfo {
  std::filesystem::path folder;
  std::string weights, precision, model_type, source, created, last_used;
  std::uint64_t bytes = 0;
  std::string fault;  // "" or why the entry can't be used
};
/// Entries of a cache folder by name; what can't be read is listed with its fault.
[[nodiscard]] std::vector<CacheEntryInfo> list_cache(const std::filesystem::path& cache_folder);
/// Reads every byte of an entry against its checksums: "" or what is wrong.
[[nodiscard]] std::string verify_cache_entry(const std::filesystem::path& entry, int threads = 0);
/// Folders of builds that have not ended: of live builders and of killed ones. `fault` says which.
[[nodiscard]] std::vector<CacheEntryInfo> unfinished_builds(
    const std::filesystem::path& cache_folder);
/// Removes what killed builders left: no process holds its file and nothing was written to it for
/// ten minutes (a lock alone tells nothing of other hosts on some network file systems). Every
/// build begins with it. @returns what was removed
std::vector<CacheEntryInfo> remove_abandoned_builds(const std::filesystem::path& cache_folder);
/// Removes damaged entries, abandoned builds and entries not used for `unused_days` (nothing when
/// negative). @returns what was removed
[[nodiscard]] std::vector<CacheEntryInfo> prune_cache(const std::filesystem::path& cache_folder,
                                                      double unused_days);
[[nodiscard]] Json to_json(const CacheEntryInfo& entry);

}  // namespace poros
