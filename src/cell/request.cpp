// SPDX-License-Identifier: Apache-2.0
#include "cell/request.hpp"

#include "base/files.hpp"
#include "cell/protocol.hpp"

namespace poros {

Json to_json(const CellRequest& request) {
  Json json{{"v", kProtocolVersion},
            {"purpose", request.purpose},
            {"cell", to_json(request.cell)},
            {"cell_key", request.cell_key},
            {"pass", request.pass},
            {"attempt", request.attempt},
            {"model_dir", request.model_dir.string()},
            {"tokens_path", request.tokens_path.string()},
            {"adapter_dir", request.adapter_dir.string()},
            {"cache_dir", request.cache_dir.string()},
            {"result_path", request.result_path.string()},
            {"threads", request.threads}};
  if (request.dump) {
    json["dump"] = {{"step", request.dump->step}, {"dir", request.dump->dir.string()}};
  }
  if (request.max_steps) json["max_steps"] = *request.max_steps;
  return json;
}

CellRequest cell_request_from_json(const Json& json, const std::string& origin) {
  const auto version = json_get<std::int64_t>(json, "v", origin);
  if (version != kProtocolVersion) {
    fail(Fault::input, "{}: request version {}, this program speaks version {}", origin, version,
         kProtocolVersion);
  }
  CellRequest request;
  request.purpose = json_get<std::string>(json, "purpose", origin);
  if (request.purpose != "timed" && request.purpose != "parity") {
    fail(Fault::input, "{}: purpose \"{}\" is neither timed nor parity", origin, request.purpose);
  }
  request.cell = cell_spec_from_json(json_get<Json>(json, "cell", origin), origin + ": cell");
  request.cell_key = json_get<std::string>(json, "cell_key", origin);
  if (request.cell_key != cell_key(request.cell)) {
    fail(Fault::input, "{}: cell_key {} is not the key of its cell ({})", origin, request.cell_key,
         cell_key(request.cell));
  }
  request.pass = json_get<std::int64_t>(json, "pass", origin);
  request.attempt = json_get<std::int64_t>(json, "attempt", origin);
  request.model_dir = json_get<std::string>(json, "model_dir", origin);
  request.tokens_path = json_get<std::string>(json, "tokens_path", origin);
  request.adapter_dir = json_get<std::string>(json, "adapter_dir", origin);
  request.cache_dir = json_get<std::string>(json, "cache_dir", origin);
  request.result_path = json_get<std::string>(json, "result_path", origin);
  request.threads = json_get<std::int64_t>(json, "threads", origin);
  if (request.threads < 1) fail(Fault::input, "{}: threads must be at least 1", origin);
  if (json.contains("dump") && !json.at("dump").is_null()) {
    const Json& dump = json.at("dump");
    request.dump = CellRequest::Dump{json_get<std::int64_t>(dump, "step", origin + ": dump"),
                                     json_get<std::string>(dump, "dir", origin + ": dump")};
  }
  request.max_steps = json_find<std::int64_t>(json, "max_steps", origin);
  return request;
}

CellRequest read_request(const std::filesystem::path& path) {
  const std::string text = read_file(path, std::uint64_t{16} << 20);
  return cell_request_from_json(parse_json(text, path.string()), path.string());
}

}  // namespace poros
