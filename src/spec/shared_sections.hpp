// SPDX-License-Identifier: Apache-2.0
// What a benchmark's spec and a training's config have in common: the section training with its
// dataset, checks over several keys, and paths that are seen from the file's folder.
#pragma once

#include <filesystem>
#include <string>

#include "spec/section_reader.hpp"
#include "spec/spec.hpp"

namespace poros {

class SharedSections : public SectionReader {
 public:
  using SectionReader::SectionReader;

  /// The section training, defaults and dataset included.
  Json read_training(const YamlNode& node);
  /// training.dataset: a mapping, or its source alone.
  Json read_dataset(const YamlNode& node);

  /// The place of training.steps and the like, or of the mapping itself where the key is absent.
  static Place place_of(const YamlNode& root, const std::string& section, const std::string& name);

  /// What single values of training and poros can't show.
  /// @param json {"training": {...}, "poros": {...}}, whole
  void check_shape(const Json& json, const YamlNode& root);
};

/// Sets path and display_name. @param folder where relative paths begin
void resolve_paths(ModelSpec& model, const std::filesystem::path& folder);
/// Sets path, validation_path and chat_template_path.
void resolve_paths(DatasetSpec& dataset, const std::filesystem::path& folder);

}  // namespace poros
