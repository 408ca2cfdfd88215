// SPDX-License-Identifier: Apache-2.0
// Dynamic text, escaped for the place where it stands. Whatever a record holds, it stays text.
#pragma once

#include <string>
#include <string_view>

namespace poros {

/// For HTML text and for attribute values in double quotes.
[[nodiscard]] std::string html_text(std::string_view text);

/// A relative link to a file of the campaign: every byte that could end the attribute, name a
/// scheme or leave the page's folder upwards is percent-encoded; an absolute path loses its root.
[[nodiscard]] std::string relative_url(std::string_view path);

/// For a Markdown table cell or line: markup characters are escaped, line ends become spaces.
[[nodiscard]] std::string markdown_text(std::string_view text);

/// sha256 of a script in the form that a Content-Security-Policy names it.
[[nodiscard]] std::string csp_hash(std::string_view script);

}  // namespace poros
