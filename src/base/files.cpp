// SPDX-License-Identifier: Apache-2.0
#include "base/files.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.hpp"

namespace poros {
namespace fs = std::filesystem;

void fail_errno(Fault fault, const std::string& what) {
  const int number = errno;
  throw Error(fault, what + ": " + std::strerror(number));
}

void UniqueFd::reset(int fd) noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

UniqueFd open_for_reading(const fs::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) fail_errno(Fault::input, path.string());
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) fail_errno(Fault::io, path.string());
  if (!S_ISREG(info.st_mode)) fail(Fault::input, "{}: not a regular file", path.string());
  return fd;
}

void pread_exact(int fd, void* into, std::size_t bytes, std::uint64_t offset,
                 const fs::path& path) {
  char* out = static_cast<char*>(into);
  while (bytes > 0) {
    const ssize_t got = ::pread(fd, out, std::min<std::size_t>(bytes, std::size_t{1} << 30),
                                static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno(Fault::io, path.string() + ": read");
    if (got == 0) {
      fail(Fault::io, "{}: ends {} bytes early at offset {}: the file was truncated", path.string(),
           bytes, offset);
    }
    out += got;
    offset += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
}

void write_all(int fd, const void* from, std::size_t bytes, const fs::path& path) {
  const char* in = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t put = ::write(fd, in, std::min<std::size_t>(bytes, std::size_t{1} << 30));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail_errno(Fault::io, path.string() + ": write");
    in += put;
    bytes -= static_cast<std::size_t>(put);
  }
}

std::string read_file(const fs::path& path, std::uint64_t max_bytes) {
  const UniqueFd fd = open_for_reading(path);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) fail_errno(Fault::io, path.string());
  const auto size = static_cast<std::uint64_t>(info.st_size);
  if (size > max_bytes) {
    fail(Fault::input, "{}: {} bytes are more than the limit of {}", path.string(), size,
         max_bytes);
  }
  std::string text(size, '\0');
  pread_exact(fd.get(), text.data(), text.size(), 0, path);
  return text;
}

void sync_folder(const fs::path& folder) {
  const UniqueFd fd(
      ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || ::fsync(fd.get()) != 0) fail_errno(Fault::io, folder.string() + ": sync");
}

void write_file_durably(const fs::path& path, std::string_view content) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::string temporary = (folder / ("." + path.filename().string() + ".XXXXXX")).string();
  UniqueFd fd(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd) fail_errno(Fault::io, path.string() + ": create");
  try {
    write_all(fd.get(), content.data(), content.size(), path);
    if (::fchmod(fd.get(), 0644) != 0 || ::fsync(fd.get()) != 0) {
      fail_errno(Fault::io, path.string() + ": sync");
    }
    if (::close(fd.release()) != 0) fail_errno(Fault::io, path.string() + ": close");
    if (::rename(temporary.c_str(), path.c_str()) != 0) {
      fail_errno(Fault::io, path.string() + ": rename");
    }
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync_folder(folder);
}

bool is_valid_id(std::string_view id) {
  const auto is_alnum = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  if (id.empty() || id.size() > 64 || !is_alnum(id[0])) return false;
  return std::all_of(id.begin(), id.end(),
                     [&](char c) { return is_alnum(c) || c == '.' || c == '_' || c == '-'; });
}

fs::path child_path(const fs::path& folder, std::string_view name) {
  const bool plain = !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
                     std::none_of(name.begin(), name.end(), [](char c) {
                       return c == '/' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
                     });
  if (!plain) {
    fail(Fault::input,
         "\"{}\" can't be a file name (no '/', no control characters, 1 to 255 bytes)", name);
  }
  return folder / std::string(name);
}

}  // namespace poros
