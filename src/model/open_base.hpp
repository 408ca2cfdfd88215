// SPDX-License-Identifier: Apache-2.0
// The way to a base: model folder -> cache entry (built when missing) -> BaseStore.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "model/base_store.hpp"
#include "model/nf4_cache.hpp"

namespace poros {

struct BaseRequest {
  std::filesystem::path model;    // folder with config.json and weights; for synthetic weights a
                                  // folder or a config.json alone
  std::string precision = "nf4";  // parse_precision()
  bool synthetic = false;         // models[].weights: synthetic
  std::uint64_t seed = 0;         // of synthetic weights
  std::filesystem::path cache;    // the cache folder; "": default_cache_folder()
  int threads = 0;                // for building; 0: one a core. Never changes a byte.
};

/// $POROS_CACHE_DIR, else $XDG_CACHE_HOME/poros, else ~/.cache/poros.
/// @throws Error(Fault::environment) when there is none of them.
[[nodiscard]] std::filesystem::path default_cache_folder();

/// Opens the base, building its cache entry first where it is missing or damaged. `progress` is
/// told of each part that is built; it isn't called when the entry is there.
/// @throws Error(Fault::input) for a checkpoint or config that can't be used, Error(Fault::io)
[[nodiscard]] std::unique_ptr<BaseStore> open_base(const BaseRequest& request,
                                                   const BuildProgress& progress = {});

/// The same with the settings that are used most.
[[nodiscard]] std::unique_ptr<BaseStore> open_base(const std::filesystem::path& model,
                                                   const std::string& precision,
                                                   const std::filesystem::path& cache = {},
                                                   const BuildProgress& progress = {});

}  // namespace poros
