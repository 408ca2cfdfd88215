// SPDX-License-Identifier: Apache-2.0
#include "spec/yaml_tree.hpp"

#include <algorithm>
#include <istream>
#include <map>
#include <streambuf>

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include "base/error.hpp"
#include "spec/text_form.hpp"

namespace poros {
namespace {

const std::string kAliasRefused = "an alias (*name) is not allowed; expected the value itself";

Place place_at(std::string_view text, std::size_t offset) {
  Place place;
  for (std::size_t i = 0; i < std::min(offset, text.size()); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == '\n') {
      ++place.line;
      place.column = 1;
    } else if ((byte & 0xc0U) != 0x80) {
      ++place.column;
    }
  }
  return place;
}

[[noreturn]] void fail_at(const std::string& origin, Place place, const std::string& message) {
  fail(Fault::input, "{}:{}:{}: {}", origin, place.line, place.column, message);
}

/// Reads from memory without a copy.
class ViewBuffer : public std::streambuf {
 public:
  explicit ViewBuffer(std::string_view text) {
    char* begin = const_cast<char*>(text.data());  // only read from; setg wants char*
    setg(begin, begin, begin + text.size());
  }
};

class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(std::string_view text, const std::string& origin, const YamlLimits& limits)
      : text_(text), origin_(origin), limits_(limits) {
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\n') line_starts_.push_back(i + 1);
    }
  }

  [[nodiscard]] YamlNode take() { return std::move(root_); }
  /// Column of the first tab before a line's content; 0: there is none.
  [[nodiscard]] std::size_t tab_in_indentation(std::size_t line) const {
    const std::string_view content = text_.substr(line_starts_[line - 1]);
    const std::string_view indentation = content.substr(0, content.find_first_not_of(" \t"));
    return indentation.find('\t') + 1;  // npos + 1 is 0
  }
  /// Where the innermost list or mapping that is still open began.
  [[nodiscard]] Place innermost() const {
    return levels_.empty() ? Place{} : levels_.back().node.place;
  }

  /// Marks count bytes from 0. They come in the order of the text, so that counting goes on from
  /// the last one: a long line is not counted anew for each of its values.
  [[nodiscard]] Place place(const YAML::Mark& mark) const {
    if (mark.is_null()) return place_at(text_, text_.size());
    const auto line = std::min(static_cast<std::size_t>(mark.line), line_starts_.size() - 1);
    const auto bytes =
        std::min(static_cast<std::size_t>(mark.column), text_.size() - line_starts_[line]);
    if (line != counted_line_ || bytes < counted_bytes_) {
      counted_line_ = line;
      counted_bytes_ = counted_characters_ = 0;
    }
    const std::string_view ahead =
        text_.substr(line_starts_[line] + counted_bytes_, bytes - counted_bytes_);
    counted_bytes_ = bytes;
    counted_characters_ += static_cast<std::size_t>(std::ranges::count_if(
        ahead, [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80; }));
    return {line + 1, counted_characters_ + 1};
  }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) {
      refuse(mark, "a second document begins here; expected one document in the file");
    }
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override {
    add(mark, YamlNode::Kind::null, {}, false);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { refuse(mark, kAliasRefused); }
  void OnAnchor(const YAML::Mark& mark, const std::string& name) override {
    refuse(mark, fmt::format("an anchor (&{}) is not allowed; expected the value alone",
                             printable(name)));
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                const std::string& value) override {
    const auto at = static_cast<std::size_t>(std::max(mark.pos, 0));
    const char first = at < text_.size() ? text_[at] : '\0';
    // "!" is also what the parser reports for a scalar in quotes or a block scalar.
    const bool quoted = tag == "!" && std::string_view("\"'|>").find(first) != std::string::npos;
    if (!quoted) refuse_tag(mark, tag);
    add(mark, YamlNode::Kind::scalar, value, quoted);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    refuse_tag(mark, tag);
    descend(mark, YamlNode::Kind::list);
  }
  void OnSequenceEnd() override { ascend(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    refuse_tag(mark, tag);
    descend(mark, YamlNode::Kind::map);
  }
  void OnMapEnd() override { ascend(); }

 private:
  struct Level {
    YamlNode node;
    bool has_key = false;  // of a map: the key of the next entry has been read
    YamlNode key;
    std::map<std::string, Place> seen;
  };

  [[noreturn]] void refuse(const YAML::Mark& mark, const std::string& message) const {
    fail_at(origin_, place(mark), message);
  }
  void refuse_tag(const YAML::Mark& mark, const std::string& tag) const {
    if (tag.empty() || tag == "?") return;
    refuse(mark,
           fmt::format("a tag ({}) is not allowed; expected the value alone", printable(tag)));
  }

  void descend(const YAML::Mark& mark, YamlNode::Kind kind) {
    if (levels_.size() >= limits_.max_depth) {
      refuse(mark,
             fmt::format("nested deeper than {} levels; expected a flat spec", limits_.max_depth));
    }
    require_plain_key(mark);
    levels_.emplace_back();
    levels_.back().node.kind = kind;
    levels_.back().node.place = place(mark);
  }
  void ascend() {
    YamlNode node = std::move(levels_.back().node);
    levels_.pop_back();
    place_node(std::move(node));
  }

  void add(const YAML::Mark& mark, YamlNode::Kind kind, const std::string& text, bool quoted) {
    YamlNode node;
    node.kind = kind;
    node.place = place(mark);
    node.text = text;
    node.quoted = quoted;
    if (!levels_.empty() && levels_.back().node.kind == YamlNode::Kind::map &&
        !levels_.back().has_key) {
      if (kind != YamlNode::Kind::scalar) require_plain_key(mark);
      take_key(mark, std::move(node));
      return;
    }
    place_node(std::move(node));
  }

  /// Called where a mapping's key may not stand.
  void require_plain_key(const YAML::Mark& mark) const {
    if (levels_.empty() || levels_.back().node.kind != YamlNode::Kind::map) return;
    if (!levels_.back().has_key) refuse(mark, "this key is not plain text; expected key: value");
  }

  void take_key(const YAML::Mark& mark, YamlNode key) {
    Level& level = levels_.back();
    const auto [first, is_new] = level.seen.emplace(key.text, key.place);
    if (!is_new) {
      refuse(mark, fmt::format("duplicate key \"{}\"; it stands already in line {}",
                               printable(key.text), first->second.line));
    }
    level.key = std::move(key);
    level.has_key = true;
  }

  void place_node(YamlNode node) {
    if (levels_.empty()) {
      root_ = std::move(node);
      return;
    }
    Level& level = levels_.back();
    if (level.node.kind == YamlNode::Kind::list) {
      level.node.items.push_back(std::move(node));
    } else {
      // The parser places a missing value where the next token is.
      const bool missing = node.kind == YamlNode::Kind::null;
      if (missing && node.place.line != level.key.place.line) node.place = level.key.place;
      level.node.entries.emplace_back(std::move(level.key), std::move(node));
      level.has_key = false;
    }
  }

  std::string_view text_;
  const std::string& origin_;
  const YamlLimits& limits_;
  std::vector<std::size_t> line_starts_{0};
  mutable std::size_t counted_line_ = 0, counted_bytes_ = 0, counted_characters_ = 0;
  std::vector<Level> levels_;
  YamlNode root_;
  int documents_ = 0;
};

/// What can be said of the bytes before they are parsed.
void check_bytes(std::string_view text, const std::string& origin, const YamlLimits& limits) {
  if (text.size() > limits.max_bytes) {
    fail_at(
        origin, {},
        fmt::format("the file has {} bytes; expected at most {}", text.size(), limits.max_bytes));
  }
  if (const auto at = find_invalid_utf8(text); at != text.npos) {
    fail_at(origin, place_at(text, at), "this byte is not UTF-8; expected a text file in UTF-8");
  }
  std::size_t openings = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool blank = byte == '\n' || byte == '\t' || byte == '\r';
    if ((byte < 0x20 && !blank) || byte == 0x7f) {
      fail_at(origin, place_at(text, i),
              fmt::format("control character 0x{:02x}; expected a text file", byte));
    }
    if ((byte == '[' || byte == '{') && ++openings > limits.max_flow_openings) {
      fail_at(origin, place_at(text, i),
              fmt::format("more than {} opening brackets; expected a flat spec",
                          limits.max_flow_openings));
    }
  }
}

/// Directives (%TAG, %YAML) change how a file is read; they stand before the first content.
void refuse_directive(std::string_view text, const std::string& origin) {
  std::size_t line = 1;
  for (std::size_t start = 0; start < text.size(); ++line) {
    const std::size_t end = std::min(text.find('\n', start), text.size());
    const std::string_view content = text.substr(start, end - start);
    if (content.starts_with('%')) {
      fail_at(origin, {line, 1}, "a directive (%) is not allowed; expected key: value");
    }
    const auto first = content.find_first_not_of(" \t\r");
    if (first != content.npos && content[first] != '#') return;
    start = end + 1;
  }
}

}  // namespace

YamlNode parse_yaml(std::string_view text, const std::string& origin, const YamlLimits& limits) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // byte order mark
  check_bytes(text, origin, limits);
  refuse_directive(text, origin);
  TreeBuilder builder(text, origin, limits);
  ViewBuffer buffer(text);
  std::istream stream(&buffer);
  try {
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& error) {
    std::string what = error.msg;
    if (what == YAML::ErrorMsg::BAD_FILE) what = "nested too deep";  // guard against recursion
    const Place place = builder.place(error.mark);
    if (const std::size_t tab = builder.tab_in_indentation(place.line); tab != 0) {
      fail_at(origin, {place.line, tab},
              "not valid YAML: a tab indents this line; expected spaces");
    }
    const bool alias = what == YAML::ErrorMsg::UNKNOWN_ANCHOR;
    if (what == YAML::ErrorMsg::END_OF_SEQ_FLOW || what == YAML::ErrorMsg::END_OF_MAP_FLOW) {
      fail_at(origin, builder.innermost(), "not valid YAML: this bracket is never closed");
    }
    fail_at(origin, place, alias ? kAliasRefused : "not valid YAML: " + what);
  }
  YamlNode root = builder.take();
  if (root.kind == YamlNode::Kind::null) {
    fail_at(origin, {}, "the file is empty; expected a spec, beginning with spec_id");
  }
  if (root.kind != YamlNode::Kind::map) {
    fail_at(origin, root.place, "the file is not a mapping; expected key: value lines");
  }
  return root;
}

}  // namespace poros
