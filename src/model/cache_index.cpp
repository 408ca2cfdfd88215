// SPDX-License-Identifier: Apache-2.0
#include "model/cache_index.hpp"

#include <map>

#include "base/error.hpp"
#include "base/sha256.hpp"

namespace poros {
namespace {

constexpr int kIndexVersion = 1;

Json to_json(const TensorPlace& t) {
  Json json = {
      {"name", t.name}, {"storage", name_of(t.storage)}, {"rows", t.rows}, {"cols", t.cols}};
  if (t.storage == Storage::nf4) json["double_quantised"] = t.double_quantised;
  return json;
}

TensorPlace place_from(const Json& json, const std::string& origin) {
  TensorPlace t;
  t.name = json_get<std::string>(json, "name", origin);
  t.storage = parse_storage(json_get<std::string>(json, "storage", origin), origin);
  t.rows = json_get<std::int64_t>(json, "rows", origin);
  t.cols = json_get<std::int64_t>(json, "cols", origin);
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  std::int64_t count = 0;
  if (t.rows < 1 || t.cols < 1 || __builtin_mul_overflow(t.rows, t.cols, &count) || count > kMost) {
    fail(Fault::input, "{}: tensor \"{}\" has an impossible size", origin, t.name);
  }
  t.double_quantised =
      t.storage == Storage::nf4 && json_get<bool>(json, "double_quantised", origin);
  return t;
}

Json to_json(const CachePart& part) {
  return {{"offset", part.offset}, {"bytes", part.bytes}, {"sha256", part.sha256}};
}

CachePart part_from(const Json& json, std::uint64_t expected_bytes, std::uint64_t file_bytes,
                    const std::string& origin) {
  CachePart part;
  part.offset = json_get<std::uint64_t>(json, "offset", origin);
  part.bytes = json_get<std::uint64_t>(json, "bytes", origin);
  part.sha256 = json_get<std::string>(json, "sha256", origin);
  if (part.bytes != expected_bytes || part.offset > file_bytes ||
      part.bytes > file_bytes - part.offset) {
    fail(Fault::input, "{}: a part lies outside base.bin or has another size than its tensors",
         origin);
  }
  return part;
}

const Json& list(const Json& body, const char* key, const std::string& origin) {
  const auto found = body.find(key);
  if (found == body.end() || !found->is_array()) {
    fail(Fault::input, "{}: \"{}\" is no list", origin, key);
  }
  return *found;
}

}  // namespace

std::string cache_index_text(const CacheIndex& index) {
  Json body = {{"version", kIndexVersion},
               {"quantiser", kQuantiserVersion},
               {"key", index.key},
               {"weights", index.weights},
               {"precision", index.precision},
               {"model_type", index.model_type},
               {"source", index.source},
               {"created", index.created},
               {"file_bytes", index.file_bytes}};
  // Layers of one shape share a list of tensors; only offsets of double quantisation differ.
  std::map<std::string, std::size_t> shapes;
  body["shapes"] = Json::array();
  body["layers"] = Json::array();
  for (std::size_t i = 0; i < index.layers.size(); ++i) {
    Json tensors = Json::array(), offsets = Json::array();
    for (const TensorPlace& t : index.layouts[i].tensors) {
      tensors.push_back(to_json(t));
      if (t.double_quantised) offsets.push_back(t.nested_offset);
    }
    const auto [shape, added] = shapes.try_emplace(dump_json(tensors), shapes.size());
    if (added) body["shapes"].push_back(std::move(tensors));
    Json layer = to_json(index.layers[i]);
    layer["shape"] = shape->second;
    layer["nested_offsets"] = std::move(offsets);
    body["layers"].push_back(std::move(layer));
  }
  body["ends"] = Json::array();
  for (std::size_t i = 0; i < index.ends.size(); ++i) {
    Json end = to_json(index.end_parts[i]);
    end["tensor"] = to_json(index.ends[i]);
    body["ends"].push_back(std::move(end));
  }
  const std::string sha256 = sha256_hex(dump_json(body));
  return dump_json(Json{{"body", std::move(body)}, {"sha256", sha256}});
}

CacheIndex parse_cache_index(const std::string& text, const std::string& origin) {
  const Json json = parse_json(text, origin);
  const auto found = json.is_object() ? json.find("body") : json.end();
  if (!json.is_object() || found == json.end() || !found->is_object()) {
    fail(Fault::input, "{}: not a cache index", origin);
  }
  const Json& body = *found;
  if (sha256_hex(dump_json(body)) != json_get<std::string>(json, "sha256", origin)) {
    fail(Fault::input, "{}: damaged (its checksum is wrong)", origin);
  }
  if (json_get<int>(body, "version", origin) != kIndexVersion ||
      json_get<int>(body, "quantiser", origin) != kQuantiserVersion) {
    fail(Fault::input, "{}: written by another version", origin);
  }
  CacheIndex index;
  index.key = json_get<std::string>(body, "key", origin);
  index.weights = json_get<std::string>(body, "weights", origin);
  index.precision = json_get<std::string>(body, "precision", origin);
  index.model_type = json_get<std::string>(body, "model_type", origin);
  index.source = json_get<std::string>(body, "source", origin);
  index.created = json_get<std::string>(body, "created", origin);
  index.file_bytes = json_get<std::uint64_t>(body, "file_bytes", origin);
  std::vector<LayerLayout> shapes;
  for (const Json& tensors : list(body, "shapes", origin)) {
    std::vector<TensorPlace> places;
    for (const Json& tensor : tensors) places.push_back(place_from(tensor, origin));
    shapes.push_back(lay_out(std::move(places)));
  }
  for (const Json& layer : list(body, "layers", origin)) {
    const auto shape = json_get<std::uint64_t>(layer, "shape", origin);
    if (shape >= shapes.size()) fail(Fault::input, "{}: a layer without a shape", origin);
    LayerLayout layout = shapes[shape];
    const Json& offsets = list(layer, "nested_offsets", origin);
    std::size_t next = 0;
    for (TensorPlace& t : layout.tensors) {
      if (!t.double_quantised) continue;
      if (next >= offsets.size() || !offsets[next].is_number()) {
        fail(Fault::input, "{}: nested_offsets are too few", origin);
      }
      t.nested_offset = offsets[next++].get<float>();
    }
    index.layers.push_back(part_from(layer, layout.bytes, index.file_bytes, origin));
    index.layouts.push_back(std::move(layout));
  }
  for (const Json& end : list(body, "ends", origin)) {
    const TensorPlace place = place_from(end.value("tensor", Json()), origin);
    index.end_parts.push_back(part_from(end, value_bytes(place), index.file_bytes, origin));
    index.ends.push_back(place);
  }
  if (index.layers.empty() || index.ends.size() < 2 || index.ends.size() > 3) {
    fail(Fault::input, "{}: incomplete", origin);
  }
  return index;
}

}  // namespace poros
