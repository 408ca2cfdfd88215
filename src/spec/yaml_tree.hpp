// SPDX-License-Identifier: Apache-2.0
// A strict reading of YAML into a small tree with places. yaml-cpp scans and parses; this listens
// to its events, so that anchors, aliases, tags, duplicate keys and depth are seen as they stand in
// the text and never walked.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace poros {

/// Line and column of a character, both from 1; columns count characters, not bytes.
struct Place {
  std::size_t line = 1, column = 1;
  auto operator<=>(const Place&) const = default;
};

struct YamlNode {
  enum class Kind { null, scalar, list, map };
  Kind kind = Kind::null;
  Place place;
  std::string text;             // of a scalar
  bool quoted = false;          // scalar in quotes or a block scalar: text, whatever it looks like
  std::vector<YamlNode> items;  // of a list
  std::vector<std::pair<YamlNode, YamlNode>> entries;  // of a map, in the order of the file
};

struct YamlLimits {
  std::size_t max_bytes = std::size_t{1} << 20;
  std::size_t max_depth = 32;
  // The scanner of yaml-cpp holds some hundred bytes for each open '[' or '{' before it parses
  // them.
  std::size_t max_flow_openings = 4096;
};

/// Parses one YAML document whose top is a mapping. Refuses: empty, not UTF-8, control characters,
/// over the limits, syntax errors, directives, anchors, aliases, tags, keys that are not plain
/// text, duplicate keys, a second document.
/// @throws Error(Fault::input): "origin:line:column: ...", the first fault of the file.
[[nodiscard]] YamlNode parse_yaml(std::string_view text, const std::string& origin,
                                  const YamlLimits& limits = {});

}  // namespace poros
