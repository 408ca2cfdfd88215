// SPDX-License-Identifier: Apache-2.0
// No secret leaves the environment: whatever is written (logs, records, argv) passes through here
// and is redacted by value.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.hpp"

namespace poros {

/// True when a variable's name says that its value is a secret: it contains TOKEN, KEY, SECRET,
/// PASS, CREDENTIAL, COOKIE or AUTH, in any case.
[[nodiscard]] bool is_secret_name(std::string_view name);

/// This process's environment, name -> value.
[[nodiscard]] std::map<std::string, std::string> current_environment();

/// Replaces the values of secret variables by "[redacted:NAME]": as they are, URL-encoded and in
/// base64. Values under 6 characters ("true", "0") are no secrets and would blacken every text.
class Redactor {
 public:
  Redactor() = default;
  explicit Redactor(const std::map<std::string, std::string>& environment);

  [[nodiscard]] std::string redact(std::string_view text) const;
  /// All strings of the value, keys of objects included.
  [[nodiscard]] Json redact_json(const Json& value) const;

  /// Bytes of the longest text that is searched for; 0 when there is nothing to hide.
  [[nodiscard]] std::size_t longest() const { return longest_; }

  /// Redacts a stream: takes what is certain from the front of `pending` and leaves a rest in it
  /// in which a secret could have begun. With `last` nothing is left.
  [[nodiscard]] std::string take(std::string& pending, bool last) const;

 private:
  struct Needle {
    std::string text, replacement;
  };
  std::vector<Needle> needles_;  // longest first
  std::size_t longest_ = 0;
};

}  // namespace poros
