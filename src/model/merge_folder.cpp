// SPDX-License-Identifier: Apache-2.0
#include "model/merge_folder.hpp"

#include <array>
#include <cstdlib>
#include <string_view>
#include <system_error>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "base/error.hpp"
#include "base/files.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

constexpr std::uint64_t kLargestCopy = std::uint64_t{256} << 20;

fs::path parent_of(const fs::path& folder) {
  const fs::path parent = fs::absolute(folder).lexically_normal().parent_path();
  return parent.empty() ? fs::path("/") : parent;
}

/// "/a/b/" and "/a/b" alike.
fs::path without_slash(const fs::path& folder) {
  fs::path plain = fs::absolute(folder).lexically_normal();
  return plain.has_filename() ? plain : plain.parent_path();
}

bool belongs_to_model(std::string_view name) {
  constexpr std::array kWhole = {"generation_config.json",   "special_tokens_map.json",
                                 "added_tokens.json",        "merges.txt",
                                 "preprocessor_config.json", "processor_config.json"};
  constexpr std::array kBegins = {"tokenizer", "vocab.", "chat_template", "LICENSE", "NOTICE"};
  for (const char* whole : kWhole) {
    if (name == whole) return true;
  }
  for (const char* begin : kBegins) {
    if (name.starts_with(begin)) return true;
  }
  return name.ends_with(".model") || name.ends_with(".jinja");
}

/// The folder locked for this process; empty where another holds it.
UniqueFd lock_folder(const fs::path& folder) {
  UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (fd && ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) fd.reset();
  return fd;
}

/// Removes folders with this beginning that no process works in.
void remove_abandoned(const fs::path& parent, const std::string& beginning) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(parent, error)) {
    if (!entry.path().filename().string().starts_with(beginning)) continue;
    if (const UniqueFd lock = lock_folder(entry.path())) fs::remove_all(entry.path(), error);
  }
}

}  // namespace

void check_new_folder(const fs::path& folder) {
  std::error_code error;
  const fs::path plain = without_slash(folder);
  if (fs::exists(plain, error) && !(fs::is_directory(plain, error) && fs::is_empty(plain, error))) {
    fail(Fault::input, "{}: is there already; name a new folder", folder.string());
  }
  if (!fs::is_directory(parent_of(plain), error)) {
    fail(Fault::input, "{}: there is no folder to put it into", folder.string());
  }
}

MergeFolder::MergeFolder(fs::path wanted, std::uint64_t bytes) : wanted_(without_slash(wanted)) {
  const fs::path parent = parent_of(wanted_);
  const std::string beginning = "." + wanted_.filename().string() + ".making-";
  remove_abandoned(parent, beginning);
  struct statvfs disk {};
  if (::statvfs(parent.c_str(), &disk) != 0) fail_errno(Fault::io, parent.string());
  const std::uint64_t free = std::uint64_t{disk.f_bavail} * disk.f_frsize;
  if (free < bytes) {
    fail(Fault::io, "{}: {:.1f} MB are to be written and {:.1f} MB are free", parent.string(),
         static_cast<double>(bytes) / 1e6, static_cast<double>(free) / 1e6);
  }
  std::string name = (parent / (beginning + "XXXXXX")).string();
  if (::mkdtemp(name.data()) == nullptr) fail_errno(Fault::io, wanted_.string());
  path_ = name;
  lock_ = lock_folder(path_);
}

MergeFolder::~MergeFolder() {
  std::error_code error;
  if (!path_.empty()) fs::remove_all(path_, error);
}

void MergeFolder::add_config(Json config, const std::string& dtype) const {
  if (!dtype.empty()) {
    config.erase("quantization_config");
    const char* named = dtype == "fp32" ? "float32" : dtype == "fp16" ? "float16" : "bfloat16";
    const bool older = config.contains("torch_dtype");
    config[older ? "torch_dtype" : "dtype"] = named;
    for (const char* part : {"text_config", "vision_config"}) {
      if (!config.contains(part) || !config[part].is_object()) continue;
      for (const char* key : {"dtype", "torch_dtype"}) {
        if (config[part].contains(key)) config[part][key] = named;
      }
    }
  }
  write_file_durably(path_ / "config.json", dump_json(config, 2) + "\n");
}

void MergeFolder::copy_small_files(const fs::path& model_dir) const {
  for (const auto& entry : fs::directory_iterator(model_dir)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_regular_file() || !belongs_to_model(name)) continue;  // follows links
    write_file_durably(path_ / name, read_file(entry.path(), kLargestCopy));
  }
}

void MergeFolder::finish() {
  if (::chmod(path_.c_str(), 0755) != 0) fail_errno(Fault::io, path_.string());
  sync_folder(path_);
  std::error_code error;
  fs::rename(path_, wanted_, error);  // an empty folder may be in its place
  if (error == std::errc::directory_not_empty || error == std::errc::file_exists) {
    fail(Fault::input, "{}: is there already, made meanwhile; name a new folder", wanted_.string());
  }
  if (error) fail(Fault::io, "{}: {}", wanted_.string(), error.message());
  path_.clear();
  sync_folder(parent_of(wanted_));
}

}  // namespace poros
