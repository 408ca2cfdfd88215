// SPDX-License-Identifier: Apache-2.0
// What an exception means for a cell's record.
#pragma once

#include <stdexcept>
#include <string>

namespace poros {

/// status, reason and message of a PassRecord that did not end ok.
struct Failure {
  std::string status;  // oom | error | skipped
  std::string reason;
  std::string message;
};

/// The arm can't run here; ends as status skipped.
class Skipped : public std::runtime_error {
 public:
  Skipped(std::string reason, const std::string& message)
      : std::runtime_error(message), reason_(std::move(reason)) {}
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }

 private:
  std::string reason_;
};

/// The exception being handled, as a record tells it: refused allocations (std::bad_alloc,
/// LibTorch's out-of-memory errors) are oom; Skipped is skipped; all else is error, with reason
/// bad_input, io, environment or failed. To be called in a catch block.
/// @param asked_for what the cell needs, added to the message of an oom
[[nodiscard]] Failure describe_failure(const std::string& asked_for);

}  // namespace poros
