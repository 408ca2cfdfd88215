// SPDX-License-Identifier: Apache-2.0
#include "campaign/known_models.hpp"

#include <filesystem>
#include <system_error>

#include "base/error.hpp"
#include "base/text.hpp"
#include "campaign/hub.hpp"
#include "model/architectures.hpp"
#include "model/config.hpp"
#include "spec/cell_spec.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

/// configs/models of the checkout that this program was built in, or of its installation.
fs::path shapes_folder() {
  if (const std::string set = environment_variable("POROS_MODELS_DIR"); !set.empty()) return set;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  for (fs::path folder = program.parent_path(); folder.has_relative_path();
       folder = folder.parent_path()) {
    for (const char* below : {"configs/models", "share/poros/models"}) {
      if (fs::is_directory(folder / below, error)) return folder / below;
    }
  }
  return POROS_SOURCE_MODELS;
}

/// A published model that is named like this one; empty: none.
fs::path published_config(const ModelSpec& model) {
  std::string slug = model_slug(model);
  std::error_code error;
  for (const char* suffix : {"", "-instruct", "-it", "-chat", "-base"}) {
    if (!slug.ends_with(suffix)) continue;
    const fs::path config =
        shapes_folder() / slug.substr(0, slug.size() - std::string(suffix).size()) / "config.json";
    if (fs::exists(config, error)) return config;
  }
  return {};
}

}  // namespace

Architecture known_architecture(const ModelSpec& model) {
  std::error_code error;
  fs::path config;
  if (!model.path.empty()) {
    config = fs::path(model.path) / "config.json";
  } else {
    try {
      config = hub_snapshot(model.model_id, model.revision) / "config.json";
    } catch (const Error&) {  // not downloaded
    }
    if (config.empty() || !fs::exists(config, error)) config = published_config(model);
  }
  if (config.empty() || !fs::exists(config, error)) {
    fail(Fault::input,
         "the shapes of {} are not known: it is not in the hub's local cache (`poros fetch`) and "
         "not "
         "among {}",
         model.model_id, shapes_folder().string());
  }
  return read_architecture(read_model_config(config));
}

}  // namespace poros
