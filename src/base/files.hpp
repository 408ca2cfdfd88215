// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace poros {

/// Owns a file descriptor; closes it on destruction. All opens here are O_CLOEXEC.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;

  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] explicit operator bool() const noexcept { return fd_ >= 0; }
  int release() noexcept {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }
  void reset(int fd = -1) noexcept;

 private:
  int fd_ = -1;
};

/// Opens a regular file for reading. @throws Error(Fault::input) naming the path and the reason.
[[nodiscard]] UniqueFd open_for_reading(const std::filesystem::path& path);

/// Reads exactly `bytes` at `offset`, in as many reads as it takes.
/// @throws Error(Fault::io) on an error or when the file ends early (it was truncated).
void pread_exact(int fd, void* into, std::size_t bytes, std::uint64_t offset,
                 const std::filesystem::path& path);

/// Writes all bytes. @throws Error(Fault::io), on a short write too (disk full).
void write_all(int fd, const void* from, std::size_t bytes, const std::filesystem::path& path);

/// The file's content. @throws Error(Fault::input) when it is missing, not a regular file or larger
/// than max_bytes.
[[nodiscard]] std::string read_file(const std::filesystem::path& path,
                                    std::uint64_t max_bytes = std::uint64_t{1} << 30);

/// Replaces the file as a whole: a temporary file in the same folder, fsync, rename, fsync of the
/// folder. A reader sees the old content or the new, never a part; after a failure the old stays.
/// @throws Error(Fault::io) naming the path.
void write_file_durably(const std::filesystem::path& path, std::string_view content);

/// fsync of a folder, so that a rename or creation in it survives a power loss.
void sync_folder(const std::filesystem::path& folder);

/// Ids that become file names: ^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$.
[[nodiscard]] bool is_valid_id(std::string_view id);

/// folder/name, where name must be a plain file name (no separator, not "." or "..", no control
/// character, at most 255 bytes): the only way in which a name from a spec or record becomes a
/// path.
/// @throws Error(Fault::input) naming the bad name.
[[nodiscard]] std::filesystem::path child_path(const std::filesystem::path& folder,
                                               std::string_view name);

}  // namespace poros
