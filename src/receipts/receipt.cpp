// SPDX-License-Identifier: Apache-2.0
#include "receipts/receipt.hpp"

#include <algorithm>
#include <array>

#include "base/sha256.hpp"

namespace poros {
namespace {

constexpr std::array kOwnNames{"v",   "seq",           "epoch",           "kind",
                               "key", "artifact_path", "artifact_sha256", "sha256"};

/// The member as it stands in a line. In canonical JSON another name always comes before it, and a
/// quote inside a text is escaped, so this text can only be the member itself.
std::string hash_member(const std::string& sha256) {
  return ",\"sha256\":\"" + sha256 + "\"";
}

bool is_own_name(std::string_view name) {
  return std::find(kOwnNames.begin(), kOwnNames.end(), name) != kOwnNames.end();
}

}  // namespace

Json scalar_fields(const Json& record) {
  Json fields = Json::object();
  for (const auto& [name, value] : record.items()) {
    if (!value.is_structured() && !is_own_name(name)) fields[name] = value;
  }
  return fields;
}

std::string to_line(const Receipt& receipt) {
  Json json = receipt.fields.is_null() ? Json::object() : receipt.fields;
  if (!json.is_object()) fail(Fault::run, "a receipt's fields must be a JSON object");
  for (const char* name : kOwnNames) {
    if (json.contains(name)) {
      fail(Fault::run, "a receipt's field can't be called \"{}\": the receipt itself uses it",
           name);
    }
  }
  json["v"] = kReceiptVersion;
  json["seq"] = receipt.seq;
  json["epoch"] = receipt.epoch;
  json["kind"] = receipt.kind;
  json["key"] = receipt.key;
  json["artifact_path"] = receipt.artifact_path;
  json["artifact_sha256"] = receipt.artifact_sha256;
  // Hashed is the text itself, after the writer's own replacements (bytes that are not UTF-8).
  const std::string unknown(64, '?');
  json["sha256"] = unknown;
  std::string line = dump_json(json);
  const std::string member = hash_member(unknown);
  const std::size_t at = line.find(member);
  std::string hashed = line;
  hashed.erase(at, member.size());
  line.replace(at, member.size(), hash_member(sha256_hex(hashed)));
  return line + "\n";
}

std::string line_sha256(const Receipt& receipt) {
  const std::string line = to_line(receipt);
  const std::string mark = ",\"sha256\":\"";
  return line.substr(line.find(mark) + mark.size(), 64);
}

Receipt receipt_from_line(std::string_view line, const std::string& origin) {
  if (!line.empty() && line.back() == '\n') line.remove_suffix(1);
  Json json = parse_json(line, origin);
  if (!json.is_object()) fail(Fault::input, "{}: a receipt must be a JSON object", origin);
  const int version = json_get<int>(json, "v", origin);
  if (version != kReceiptVersion) {
    fail(Fault::input, "{}: receipt version {}; this program reads version {}", origin, version,
         kReceiptVersion);
  }
  const auto stated = json_get<std::string>(json, "sha256", origin);
  const std::string member = hash_member(stated);
  const std::size_t at = line.find(member);
  std::string hashed(line.substr(0, at));
  if (at != std::string_view::npos) hashed += line.substr(at + member.size());
  if (at == std::string_view::npos || sha256_hex(hashed) != stated) {
    fail(Fault::input, "{}: the line does not match its sha256: it was altered", origin);
  }
  Receipt receipt;
  receipt.seq = json_get<std::int64_t>(json, "seq", origin);
  receipt.epoch = json_get<std::int64_t>(json, "epoch", origin);
  receipt.kind = json_get<std::string>(json, "kind", origin);
  receipt.key = json_get<std::string>(json, "key", origin);
  receipt.artifact_path = json_get<std::string>(json, "artifact_path", origin);
  receipt.artifact_sha256 = json_get<std::string>(json, "artifact_sha256", origin);
  for (const char* name : kOwnNames) json.erase(name);
  receipt.fields = std::move(json);
  return receipt;
}

}  // namespace poros
