// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

#include <fmt/format.h>

namespace poros {

/// What kind of fault an Error is; decides the exit code.
enum class Fault {
  usage,        // the command line is wrong
  input,        // a file or value that a person gave is wrong
  io,           // reading or writing failed (disk full, permission)
  environment,  // something the machine should have is missing
  run,          // the work itself failed
};

/// Exit codes of every program (README, "Exit codes").
enum ExitCode : int { kDone = 0, kFailed = 1, kWrongInput = 2, kStoppedEarly = 75 };

/// The one exception root. `what()` says where, what and, after the text, how to mend it.
class Error : public std::runtime_error {
 public:
  Error(Fault fault, const std::string& message) : std::runtime_error(message), fault_(fault) {}
  [[nodiscard]] Fault fault() const noexcept { return fault_; }
  /// 2 for wrong use or input, 1 for all else.
  [[nodiscard]] int exit_code() const noexcept {
    return fault_ == Fault::usage || fault_ == Fault::input ? kWrongInput : kFailed;
  }

 private:
  Fault fault_;
};

/// Memory that was asked for was refused; ends a cell with the status oom.
class OutOfMemory : public Error {
 public:
  explicit OutOfMemory(const std::string& message) : Error(Fault::environment, message) {}
};

/// Throws Error with a formatted message.
template <typename... Args>
[[noreturn]] void fail(Fault fault, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fault, fmt::format(format, std::forward<Args>(args)...));
}

/// Throws Error with a formatted message and the text of the current errno.
[[noreturn]] void fail_errno(Fault fault, const std::string& what);

}  // namespace poros
