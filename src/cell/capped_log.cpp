// SPDX-License-Identifier: Apache-2.0
#include "cell/capped_log.hpp"

#include <algorithm>
#include <utility>

#include <fcntl.h>

namespace poros {
namespace {
constexpr std::size_t kLastTextBytes = 4096;
}

CappedLog::CappedLog(std::filesystem::path path, std::size_t limit_bytes, const Redactor& redactor)
    : path_(std::move(path)),
      head_limit_(limit_bytes / 2),
      tail_limit_(limit_bytes - limit_bytes / 2),
      redactor_(redactor) {
  fd_.reset(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!fd_) fail_errno(Fault::io, path_.string());
}

void CappedLog::append(std::string_view bytes) {
  bytes_seen_ += bytes.size();
  pending_.append(bytes);
  put(redactor_.take(pending_, false));
}

void CappedLog::finish() {
  put(redactor_.take(pending_, true));
  if (tail_.size() > tail_limit_) {
    dropped_ += tail_.size() - tail_limit_;
    tail_.erase(0, tail_.size() - tail_limit_);
  }
  if (dropped_ > 0) write(fmt::format("\n[... {} bytes left out ...]\n", dropped_));
  write(tail_);
  tail_.clear();
  fd_.reset();
}

void CappedLog::put(std::string_view text) {
  last_text_.append(text.substr(text.size() - std::min(text.size(), kLastTextBytes)));
  if (last_text_.size() > kLastTextBytes) last_text_.erase(0, last_text_.size() - kLastTextBytes);

  const std::size_t room = std::min(head_limit_ - head_bytes_, text.size());
  write(text.substr(0, room));
  head_bytes_ += room;
  tail_.append(text.substr(room));
  if (tail_.size() > 2 * tail_limit_) {
    dropped_ += tail_.size() - tail_limit_;
    tail_.erase(0, tail_.size() - tail_limit_);
  }
}

void CappedLog::write(std::string_view text) {
  if (text.empty() || !error_.empty()) return;
  try {
    write_all(fd_.get(), text.data(), text.size(), path_);
  } catch (const Error& error) {
    error_ = error.what();
  }
}

}  // namespace poros
