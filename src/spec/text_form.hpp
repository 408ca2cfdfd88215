// SPDX-License-Identifier: Apache-2.0
// The forms that texts of a spec may have, and the nearest known word to a misspelt one.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "spec/schema.hpp"

namespace poros {

/// What is wrong with a text of that form, without the expectation, or nullopt.
[[nodiscard]] std::optional<std::string> form_complaint(TextForm form, const std::string& text);

/// Completes "expected ...".
[[nodiscard]] std::string form_expectation(TextForm form);

/// The same rule as a regular expression (ECMA 262), for the JSON Schema; empty: any text. It may
/// be wider than form_complaint.
[[nodiscard]] std::string form_pattern(TextForm form);

/// Whether a model or dataset is named by a path: it begins with "/", "./" or "../".
[[nodiscard]] bool is_local_path(std::string_view text);

/// For messages: control characters become '?', and what is longer than 60 bytes is cut.
[[nodiscard]] std::string printable(std::string_view text);

/// The candidate that differs from `word` by the fewest typing errors (insert, delete, replace,
/// swap of neighbours), upper and lower case alike; empty when none is near (more than a third of
/// it).
[[nodiscard]] std::string nearest(std::string_view word,
                                  const std::vector<std::string>& candidates);

/// A Markdown table whose columns are aligned, so that it reads well as plain text. The first row
/// is the header; the last column is not padded.
[[nodiscard]] std::string markdown_table(const std::vector<std::vector<std::string>>& rows);

/// Byte offset of the first byte that does not continue valid UTF-8 (RFC 3629); npos: all is valid.
[[nodiscard]] std::size_t find_invalid_utf8(std::string_view text);

}  // namespace poros
