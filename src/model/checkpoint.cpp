// SPDX-License-Identifier: Apache-2.0
#include <set>

#include "base/error.hpp"
#include "base/json.hpp"
#include "model/safetensors.hpp"

namespace poros {
namespace fs = std::filesystem;

Checkpoint::Checkpoint(const fs::path& folder) : folder_(folder) {
  const fs::path single = folder / "model.safetensors";
  const fs::path index_path = folder / "model.safetensors.index.json";
  const bool sharded = fs::exists(index_path);
  if (!sharded && !fs::exists(single)) {
    fail(Fault::input,
         "{}: neither model.safetensors nor model.safetensors.index.json is there (other formats, "
         "such as pytorch_model.bin, are not read: convert it to safetensors)",
         folder.string());
  }
  std::map<std::string, std::string> shard_of;  // tensor -> file, as the index says
  std::set<std::string> shards;
  if (sharded) {
    const std::string origin = index_path.string();
    const Json index = parse_json(read_file(index_path, SafetensorsFile::kMaxHeaderBytes), origin);
    const auto map = index.is_object() ? index.find("weight_map") : index.end();
    if (!index.is_object() || map == index.end() || !map->is_object()) {
      fail(Fault::input, "{}: no weight_map object", origin);
    }
    for (const auto& [tensor, file] : map->items()) {
      if (!file.is_string()) fail(Fault::input, "{}: weight_map \"{}\" is no file", origin, tensor);
      shards.insert(shard_of[tensor] = file.get<std::string>());
    }
    if (shards.empty()) fail(Fault::input, "{}: weight_map is empty", origin);
  } else {
    shards.insert("model.safetensors");
  }
  for (const std::string& shard : shards) {
    const auto& file =
        files_.emplace_back(std::make_unique<SafetensorsFile>(child_path(folder, shard)));
    for (const auto& [name, tensor] : file->tensors()) {
      if (sharded) {
        const auto said = shard_of.find(name);
        if (said == shard_of.end() || said->second != shard) {
          fail(Fault::input, "{}: tensor \"{}\" is not listed for this file in {}",
               file->path().string(), name, index_path.filename().string());
        }
        shard_of.erase(said);
      }
      tensors_[name] = {file.get(), &tensor};
    }
  }
  if (!shard_of.empty()) {
    fail(Fault::input, "{}: tensor \"{}\" is listed in {} but not there", folder.string(),
         shard_of.begin()->first, shard_of.begin()->second);
  }
}

Checkpoint::Found Checkpoint::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? Found{} : found->second;
}

Checkpoint::Found Checkpoint::at(const std::string& name) const {
  const Found found = find(name);
  if (!found) {
    fail(Fault::input, "{}: the checkpoint has no tensor \"{}\"", folder_.string(), name);
  }
  return found;
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> all;
  all.reserve(tensors_.size());
  for (const auto& [name, found] : tensors_) all.push_back(name);
  return all;
}

}  // namespace poros
