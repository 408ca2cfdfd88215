// SPDX-License-Identifier: Apache-2.0
#include "campaign/peer_checkpoint.hpp"

#include <string>
#include <system_error>

#include <unistd.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/json.hpp"
#include "base/sha256.hpp"
#include "model/config.hpp"
#include "model/export_base.hpp"
#include "model/open_base.hpp"

namespace poros {
namespace fs = std::filesystem;

fs::path peer_checkpoint(const CellSpec& cell, const fs::path& model_dir, const fs::path& cache,
                         const std::function<void()>& making) {
  if (cell.model.weights != "synthetic") return model_dir;
  const std::string id = sha256_hex(dump_json({{"config", sha256_file(model_dir / "config.json")},
                                               {"precision", cell.precision},
                                               {"seed", cell.training.seed}}));
  const fs::path folder = cache / "checkpoints" / id.substr(0, 32);
  std::error_code error;
  if (fs::exists(folder / "config.json", error)) return folder;
  if (making) making();
  BaseRequest request;
  request.model = model_dir;
  request.precision = cell.precision;
  request.synthetic = true;
  request.seed = static_cast<std::uint64_t>(cell.training.seed);
  request.cache = cache;
  const auto base = open_base(request);
  // Made under another name and renamed when it is whole.
  const fs::path unfinished =
      cache / "checkpoints" / (".making-" + std::to_string(::getpid()) + "-" + id.substr(0, 8));
  fs::remove_all(unfinished, error);
  fs::create_directories(unfinished);
  export_base(*base, read_model_config(model_dir), unfinished);
  fs::rename(unfinished, folder, error);
  if (error) {  // another process may have been faster
    const std::string why = error.message();
    std::error_code ignored;
    fs::remove_all(unfinished, ignored);
    if (!fs::exists(folder / "config.json", ignored)) {
      fail(Fault::io, "{}: {}", folder.string(), why);
    }
  }
  return folder;
}

}  // namespace poros
