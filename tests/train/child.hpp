// SPDX-License-Identifier: Apache-2.0
// Starts a program with an event pipe, as a driver does.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "base/files.hpp"
#include "base/json.hpp"

namespace poros {

struct ChildOptions {
  bool close_event_reader = false;                 // nobody ever reads the events
  std::optional<std::size_t> address_space_bytes;  // RLIMIT_AS
};

class Child {
 public:
  explicit Child(const std::vector<std::string>& argv, const ChildOptions& options = {});
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  /// The next event, or nothing at the end of the pipe or after 60 s.
  std::optional<Json> next_event();
  void send_signal(int signal) const;
  /// Waits for the end. @returns exit code, or 128 + signal
  int wait();
  /// stdout and stderr together; complete after wait().
  [[nodiscard]] const std::string& output() const { return output_; }

 private:
  pid_t pid_ = -1;
  UniqueFd events_, output_fd_;
  std::string pending_, output_;
};

}  // namespace poros
