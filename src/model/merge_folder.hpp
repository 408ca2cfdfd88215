// SPDX-License-Identifier: Apache-2.0
// The folder of a checkpoint that is being written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/files.hpp"
#include "base/json.hpp"

namespace poros {

/// @throws Error(Fault::input) when there is something already that isn't an empty folder, or no
/// folder to put it into
void check_new_folder(const std::filesystem::path& folder);

/// A hidden folder beside the one that is wanted; gone unless finish() gave it its name. What a
/// process that was killed left there is removed by the next one that wants the same name.
class MergeFolder {
 public:
  /// @param bytes that will be written. @throws Error(Fault::io) where the disk has less free
  MergeFolder(std::filesystem::path wanted, std::uint64_t bytes);
  ~MergeFolder();
  MergeFolder(const MergeFolder&) = delete;
  MergeFolder& operator=(const MergeFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  /// config.json. @param dtype bf16 | fp16 | fp32 where the weights are plain and of that type now;
  /// empty: as the given config says
  void add_config(Json config, const std::string& dtype) const;
  /// What else belongs to a model: tokenizer, chat template, generation_config.json, licence.
  void copy_small_files(const std::filesystem::path& model_dir) const;
  /// @throws Error(Fault::io)
  void finish();

 private:
  std::filesystem::path wanted_, path_;
  UniqueFd lock_;  // held on path_ while this process works in it
};

}  // namespace poros
