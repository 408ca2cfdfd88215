// SPDX-License-Identifier: Apache-2.0
#include "base/json.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

namespace poros {
namespace {

/// Passes events on to the library's own DOM builder after checking depth and duplicate keys.
class StrictSax : public nlohmann::detail::json_sax_dom_parser<Json> {
  using Base = nlohmann::detail::json_sax_dom_parser<Json>;

 public:
  StrictSax(Json& value, const std::string& origin, int max_depth)
      : Base(value, false), origin_(origin), max_depth_(max_depth) {}

  bool start_object(std::size_t size) {
    descend();
    keys_.emplace_back();
    return Base::start_object(size);
  }
  bool end_object() {
    --depth_;
    keys_.pop_back();
    return Base::end_object();
  }
  bool start_array(std::size_t size) {
    descend();
    return Base::start_array(size);
  }
  bool end_array() {
    --depth_;
    return Base::end_array();
  }
  bool key(std::string& name) {
    if (!keys_.back().insert(name).second) {
      fail(Fault::input, "{}: duplicate key \"{}\"", origin_, name);
    }
    return Base::key(name);
  }
  bool number_float(double value, const std::string& text) {
    if (!std::isfinite(value)) {
      fail(Fault::input, "{}: number {} is out of range", origin_, text);
    }
    return Base::number_float(value, text);
  }
  template <class Exception>
  bool parse_error(std::size_t position, const std::string&, const Exception& error) {
    fail(Fault::input, "{}: byte {}: not valid JSON: {}", origin_, position, error.what());
  }

 private:
  void descend() {
    if (++depth_ > max_depth_) {
      fail(Fault::input, "{}: nested deeper than {} levels", origin_, max_depth_);
    }
  }

  const std::string& origin_;
  int max_depth_;
  int depth_ = 0;
  std::vector<std::set<std::string>> keys_;
};

bool is_finite(const Json& value) {
  if (value.is_structured()) return std::all_of(value.begin(), value.end(), is_finite);
  return !value.is_number_float() || std::isfinite(value.get<double>());
}

/// Names the place of the first number that is not finite.
void refuse_non_finite(const Json& value, const std::string& path) {
  if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    fail(Fault::run, "refusing to write a number that is not finite at {}",
         path.empty() ? "/" : path);
  }
  if (value.is_object()) {
    for (const auto& [key, item] : value.items()) refuse_non_finite(item, path + "/" + key);
  } else if (value.is_array()) {
    for (std::size_t i = 0; i < value.size(); ++i) {
      refuse_non_finite(value[i], path + "/" + std::to_string(i));
    }
  }
}

}  // namespace

Json parse_json(std::string_view text, const std::string& origin, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    fail(Fault::input, "{}: {} bytes are more than the limit of {}", origin, text.size(),
         limits.max_bytes);
  }
  Json value;
  StrictSax sax(value, origin, limits.max_depth);
  if (!Json::sax_parse(text.begin(), text.end(), &sax)) {
    fail(Fault::input, "{}: not valid JSON", origin);
  }
  return value;
}

std::string dump_json(const Json& value, int indent) {
  if (!is_finite(value)) refuse_non_finite(value, "");
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace poros
