// SPDX-License-Identifier: Apache-2.0
#include "campaign/hub.hpp"

#include <system_error>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/text.hpp"

namespace poros {
namespace fs = std::filesystem;
fs::path hub_cache() {
  if (const std::string cache = environment_variable("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const std::string home = environment_variable("HF_HOME"); !home.empty())
    return fs::path(home) / "hub";
  if (const std::string cache = environment_variable("XDG_CACHE_HOME"); !cache.empty()) {
    return fs::path(cache) / "huggingface" / "hub";
  }
  return fs::path(environment_variable("HOME")) / ".cache" / "huggingface" / "hub";
}

fs::path hub_snapshot(const std::string& model_id, const std::string& revision) {
  std::string name = "models--" + model_id;
  for (auto at = name.find('/'); at != std::string::npos; at = name.find('/')) {
    name.replace(at, 1, "--");
  }
  const fs::path repository = child_path(hub_cache(), name);
  std::error_code error;
  std::string commit = revision;
  // refs/<revision> holds the commit; a revision may have slashes ("refs/pr/1"), but no "..".
  const fs::path reference = (repository / "refs" / revision).lexically_normal();
  const bool inside = reference.string().starts_with((repository / "refs").string() + "/");
  if (inside && fs::is_regular_file(reference, error)) {
    commit = read_file(reference, 4096);
    commit.erase(commit.find_last_not_of(" \t\r\n") + 1);
  }
  if (is_valid_id(commit)) {
    const fs::path snapshot = child_path(repository / "snapshots", commit);
    if (fs::exists(snapshot / "config.json", error)) return snapshot;
  }
  fail(Fault::input,
       "{}: not in the local hub cache ({}, revision {}); fetch it with `hf download {}`, set "
       "HF_HOME, or name a checkpoint folder by its path",
       model_id, repository.string(), revision, model_id);
}

}  // namespace poros
