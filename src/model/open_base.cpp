// SPDX-License-Identifier: Apache-2.0
#include "model/open_base.hpp"

#include <cstdlib>

#include "base/error.hpp"
#include "base/text.hpp"
#include "model/architectures.hpp"
#include "model/base_source.hpp"
#include "model/checkpoint_digest.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

std::shared_ptr<const BaseSource> make_source(const BaseRequest& request, const fs::path& cache) {
  const Precision precision = parse_precision(request.precision);
  const ModelConfig config = read_model_config(request.model);
  const Architecture architecture = read_architecture(config);
  if (request.synthetic) {
    return synthetic_source(architecture, precision, request.seed, request.threads);
  }
  if (!fs::is_directory(request.model)) {
    fail(Fault::input, "{}: not a folder with a checkpoint", request.model.string());
  }
  auto checkpoint = std::make_shared<const Checkpoint>(request.model);
  const std::string digest = checkpoint_digest(request.model, *checkpoint, cache, request.threads);
  return checkpoint_source(architecture, config, std::move(checkpoint), precision, digest,
                           request.threads);
}

}  // namespace

fs::path default_cache_folder() {
  if (const std::string folder = environment_variable("POROS_CACHE_DIR"); !folder.empty())
    return folder;
  if (const std::string folder = environment_variable("XDG_CACHE_HOME"); !folder.empty()) {
    return fs::path(folder) / "poros";
  }
  if (const std::string home = environment_variable("HOME"); !home.empty()) {
    return fs::path(home) / ".cache" / "poros";
  }
  fail(Fault::environment, "no cache folder: set POROS_CACHE_DIR");
}

std::unique_ptr<BaseStore> open_base(const BaseRequest& request, const BuildProgress& progress) {
  const fs::path cache = request.cache.empty() ? default_cache_folder() : request.cache;
  const std::shared_ptr<const BaseSource> source = make_source(request, cache);
  const std::string key = cache_key(source->identity(), source->precision().name);
  const fs::path entry =
      cache / cache_entry_name(source->architecture().model_type, source->precision().name, key);
  if (fs::exists(entry)) {
    try {
      return open_cache_entry(entry, source);
    } catch (const Error& error) {
      if (error.fault() != Fault::input) throw;
      // Damaged: out of the way under a name that prune removes, then built again.
      std::string aside = (cache / ".damaged-XXXXXX").string();
      if (::mkdtemp(aside.data()) == nullptr) fail_errno(Fault::io, cache.string());
      std::error_code moved;  // another process may have been faster
      fs::rename(entry, fs::path(aside) / entry.filename(), moved);
      fs::remove_all(aside, moved);
    }
  }
  return open_cache_entry(
      build_cache_entry(*source, cache, fs::absolute(request.model).string(), progress), source);
}

std::unique_ptr<BaseStore> open_base(const fs::path& model, const std::string& precision,
                                     const fs::path& cache, const BuildProgress& progress) {
  BaseRequest request;
  request.model = model;
  request.precision = precision;
  request.cache = cache;
  return open_base(request, progress);
}

}  // namespace poros
