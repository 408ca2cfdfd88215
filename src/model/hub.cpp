// SPDX-License-Identifier: Apache-2.0
#include "model/hub.hpp"

#include <algorithm>
#include <cctype>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/text.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

/// A part of a hub id or a revision: letters, digits, '.', '_', '-', not only dots.
bool is_plain_part(const std::string& part) {
  return !part.empty() && part.size() <= 96 && part.find_first_not_of('.') != std::string::npos &&
         std::all_of(part.begin(), part.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
         });
}

std::string trimmed(std::string text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) {
    text.pop_back();
  }
  return text;
}

}  // namespace

fs::path hub_cache_folder() {
  if (const std::string folder = environment_variable("HF_HUB_CACHE"); !folder.empty())
    return folder;
  if (const std::string home = environment_variable("HF_HOME"); !home.empty())
    return fs::path(home) / "hub";
  if (const std::string cache = environment_variable("XDG_CACHE_HOME"); !cache.empty()) {
    return fs::path(cache) / "huggingface" / "hub";
  }
  const std::string home = environment_variable("HOME");
  if (home.empty()) fail(Fault::environment, "no hub cache folder: set HF_HOME");
  return fs::path(home) / ".cache" / "huggingface" / "hub";
}

bool is_hub_id(const std::string& model_id) {
  if (model_id.starts_with('/') || model_id.starts_with("./") || model_id.starts_with("../") ||
      model_id.starts_with('~') || model_id == "." || model_id == "..") {
    return false;
  }
  const std::size_t slash = model_id.find('/');
  return slash == std::string::npos ? is_plain_part(model_id)
                                    : is_plain_part(model_id.substr(0, slash)) &&
                                          is_plain_part(model_id.substr(slash + 1));
}

fs::path resolve_model(const std::string& model_id, const std::string& revision,
                       const fs::path& spec_folder) {
  if (!is_hub_id(model_id)) {
    fs::path path = model_id;
    if (model_id.starts_with("~/"))
      path = fs::path(environment_variable("HOME")) / model_id.substr(2);
    if (path.is_relative()) path = spec_folder / path;
    path = path.lexically_normal();
    if (!fs::exists(path))
      fail(Fault::input, "model \"{}\": {} is not there", model_id, path.string());
    return path;
  }
  std::string folder = "models--" + model_id;
  if (const std::size_t slash = folder.find('/'); slash != std::string::npos) {
    folder.replace(slash, 1, "--");
  }
  const fs::path repository = hub_cache_folder() / folder;
  const auto missing = [&](const std::string& what) {
    fail(Fault::input,
         "model \"{}\", revision \"{}\": {}; fetch it on a machine with network, or give a path "
         "that begins with \"/\", \"./\" or \"../\"",
         model_id, revision, what);
  };
  if (!fs::is_directory(repository)) missing(repository.string() + " is not there");
  // A revision may be a branch with slashes ("refs/pr/1"): each part is checked.
  std::size_t begin = 0;
  while (begin <= revision.size()) {
    const std::size_t end = std::min(revision.find('/', begin), revision.size());
    if (!is_plain_part(revision.substr(begin, end - begin))) missing("not a valid revision");
    begin = end + 1;
  }
  std::string commit = revision;
  if (const fs::path ref = repository / "refs" / revision; fs::is_regular_file(ref)) {
    commit = trimmed(read_file(ref, 4096));
    if (!is_plain_part(commit)) missing(ref.string() + " holds no commit");
  }
  const fs::path snapshot = repository / "snapshots" / commit;
  if (!fs::is_directory(snapshot)) missing(snapshot.string() + " is not there");
  return snapshot;
}

}  // namespace poros
