// SPDX-License-Identifier: Apache-2.0
#include "model/checkpoint_digest.hpp"

#include <map>
#include <utility>
#include <vector>

#include <sys/stat.h>

#include "base/error.hpp"
#include "base/json.hpp"
#include "base/sha256.hpp"
#include "model/workers.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

/// "<size> <modification time [ns]>" of the file that a path leads to; the remembered hash counts
/// while this is unchanged.
std::string stamp(const fs::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) fail_errno(Fault::input, path.string());
  return fmt::format("{} {}.{:09}", info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
}

/// The remembered hashes; a file that can't be read or parsed remembers nothing.
Json recall(const fs::path& file) {
  try {
    Json known = parse_json(read_file(file, std::uint64_t{64} << 20), file.string());
    if (known.is_object()) return known;
  } catch (const Error&) {
  }
  return Json::object();
}

}  // namespace

std::string checkpoint_digest(const fs::path& folder, const Checkpoint& checkpoint,
                              const fs::path& memory_folder, int threads) {
  const fs::path memory = memory_folder / "digests.json";
  Json known = memory_folder.empty() ? Json::object() : recall(memory);
  struct Item {
    fs::path path;
    std::string key, stamp, sha256;
  };
  std::map<std::string, Item> items;  // by name
  std::vector<Item*> to_hash;
  for (const auto& file : checkpoint.files()) {
    Item& item = items[file->path().filename().string()];
    item.path = file->path();
    item.key = fs::absolute(item.path).string();
    item.stamp = stamp(item.path);
    const Json found = known.value(item.key, Json());
    if (found.is_object() && found.value("stamp", "") == item.stamp &&
        found.value("sha256", "").size() == 64) {
      item.sha256 = found["sha256"].get<std::string>();
    } else {
      to_hash.push_back(&item);
    }
  }
  run_tasks(static_cast<std::int64_t>(to_hash.size()), threads, [&](std::int64_t i) {
    Item& item = *to_hash[static_cast<std::size_t>(i)];
    item.sha256 = sha256_file(item.path);
    if (stamp(item.path) != item.stamp) {
      fail(Fault::input, "{}: the file changed while it was read", item.path.string());
    }
  });
  Sha256 digest;
  digest.update(fmt::format("config.json {}\n", sha256_hex(read_file(folder / "config.json"))));
  for (const auto& [name, item] : items) {
    digest.update(fmt::format("{} {} {}\n", name, fs::file_size(item.path), item.sha256));
  }
  if (!to_hash.empty() && !memory_folder.empty()) {
    known = recall(memory);  // another process may have added to it meanwhile
    for (const Item* item : to_hash) {
      known[item->key] = {{"stamp", item->stamp}, {"sha256", item->sha256}};
    }
    try {
      std::error_code error;
      fs::create_directories(memory_folder, error);
      write_file_durably(memory, dump_json(known, 1));
    } catch (const Error&) {
      // Nothing is remembered in a folder that can't be written; the digest is right all the same.
    }
  }
  return digest.hex();
}

}  // namespace poros
