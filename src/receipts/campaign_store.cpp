// SPDX-License-Identifier: Apache-2.0
#include "receipts/campaign_store.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "receipts/hdf5_store.hpp"
#include "receipts/journal.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

/// dir/a/b/c for a relative path from a record; each part must be a plain name.
fs::path inside(const fs::path& dir, const std::string& relative) {
  fs::path path = dir;
  std::size_t begin = 0;
  while (begin <= relative.size()) {
    const std::size_t end = std::min(relative.find('/', begin), relative.size());
    path = child_path(path, std::string_view(relative).substr(begin, end - begin));
    begin = end + 1;
  }
  return path;
}

/// The text of an artifact, or nothing with the reason in `problems`.
std::optional<std::string> artifact_text(const fs::path& dir, const std::string& relative,
                                         const std::string& sha256,
                                         std::vector<std::string>& problems) {
  try {
    const fs::path path = inside(dir, relative);
    if (!fs::exists(path)) {
      problems.push_back(fmt::format("{}: the record is missing", relative));
      return std::nullopt;
    }
    std::string text = read_file(path);
    if (sha256_hex(text) == sha256) return text;
    problems.push_back(fmt::format("{}: the record was altered (its sha256 is another)", relative));
  } catch (const Error& error) {
    problems.push_back(fmt::format("{}: the record can't be read: {}", relative, error.what()));
  }
  return std::nullopt;
}

/// What the receipt itself says of a cell whose artifact is gone: the scalar fields.
RunArtifact from_receipt(const Receipt& receipt) {
  Json fields = receipt.fields;
  for (const char* key : {"method", "model_id", "precision"}) {
    if (!fields.contains(key) || !fields[key].is_string()) fields[key] = "";
  }
  if (!fields.contains("schema_version")) fields["schema_version"] = kArtifactSchema;
  RunArtifact artifact =
      run_artifact_from_json(fields, fmt::format("{}: record {}", kJournalName, receipt.seq));
  artifact.cell_key = receipt.key;
  return artifact;
}

/// Keys that spec.json expects: by their `index` where they have one (JSON objects are unordered).
std::vector<std::string> expected_keys(const Json& spec) {
  std::vector<std::pair<std::int64_t, std::string>> keys;
  const auto cells = spec.find("cells");
  if (cells == spec.end()) return {};
  if (cells->is_object()) {
    for (const auto& [key, cell] : cells->items()) {
      keys.emplace_back(json_find<std::int64_t>(cell, "index", kSpecFile).value_or(0), key);
    }
    std::stable_sort(keys.begin(), keys.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
  } else if (cells->is_array()) {
    for (const Json& cell : *cells) {
      keys.emplace_back(0, json_get<std::string>(cell, "key", kSpecFile));
    }
  }
  std::vector<std::string> result;
  for (auto& [index, key] : keys) result.push_back(std::move(key));
  return result;
}

/// results.jsonl of the Python original: one RunArtifact a line, no checksums.
Campaign load_original(const std::string& text, Json spec, const std::string& origin) {
  Campaign campaign;
  campaign.spec = std::move(spec);
  campaign.original_format = true;
  campaign.receipts_sha256 = sha256_hex(text);
  std::int64_t number = 0;
  for (std::size_t begin = 0; begin < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string where = fmt::format("{}: line {}", origin, number + 1);
    CampaignCell cell;
    cell.artifact = run_artifact_from_json(
        parse_json(std::string_view(text).substr(begin, end - begin), where), where);
    cell.path = kJournalName;
    cell.seq = number;
    campaign.cells.push_back(std::move(cell));
    begin = end + 1;
  }
  return campaign;
}

/// Does the first line lack what every receipt has?
bool is_original(const std::string& text) {
  const auto line = std::string_view(text).substr(0, text.find('\n'));
  if (line.empty()) return false;
  try {
    const Json json = parse_json(line, kJournalName);
    return json.is_object() && json.contains("method") && !json.contains("sha256");
  } catch (const Error&) {
    return false;
  }
}

CampaignCell load_cell(const fs::path& dir, const Receipt& receipt,
                       std::vector<std::string>& problems) {
  CampaignCell cell;
  cell.path = receipt.artifact_path;
  cell.sha256 = receipt.artifact_sha256;
  cell.seq = receipt.seq;
  const auto text = artifact_text(dir, receipt.artifact_path, receipt.artifact_sha256, problems);
  cell.artifact = text ? run_artifact_from_json(parse_json(*text, cell.path), cell.path)
                       : from_receipt(receipt);
  if (cell.artifact.cell_key.empty()) cell.artifact.cell_key = receipt.key;
  return cell;
}

CampaignParity load_parity(const fs::path& dir, const Receipt& receipt,
                           std::vector<std::string>& problems) {
  CampaignParity parity;
  parity.group_key = receipt.key;
  parity.seq = receipt.seq;
  parity.fields = receipt.fields;
  parity.path = receipt.artifact_path;
  parity.sha256 = receipt.artifact_sha256;
  if (const auto text = artifact_text(dir, parity.path, parity.sha256, problems)) {
    parity.record = parse_json(*text, parity.path);
  }
  return parity;
}

}  // namespace

std::vector<CampaignPass> load_passes(const fs::path& dir, const CampaignCell& cell,
                                      std::vector<std::string>& problems) {
  std::vector<CampaignPass> passes;
  for (const Json& entry : cell.artifact.passes) {
    CampaignPass pass;
    pass.path = json_find<std::string>(entry, "artifact_path", cell.path).value_or("");
    pass.sha256 = json_find<std::string>(entry, "artifact_sha256", cell.path).value_or("");
    if (pass.path.empty()) continue;  // a pass that left no record
    const auto text = artifact_text(dir, pass.path, pass.sha256, problems);
    if (!text) continue;
    pass.record = pass_record_from_json(parse_json(*text, pass.path), pass.path);
    passes.push_back(std::move(pass));
  }
  return passes;
}

Campaign load_campaign_folder(const fs::path& dir, bool passes) {
  const fs::path journal = dir / kJournalName;
  const fs::path spec_file = dir / kSpecFile;
  if (!fs::exists(journal) && !fs::exists(spec_file)) {
    fail(Fault::input, "{}: not a campaign folder: neither {} nor {} is in it", dir.string(),
         kJournalName, kSpecFile);
  }
  Json spec = Json::object();
  if (fs::exists(spec_file)) spec = parse_json(read_file(spec_file), spec_file.string());
  if (!spec.is_object()) fail(Fault::input, "{}: must be a JSON object", spec_file.string());
  const std::string text = fs::exists(journal) ? read_file(journal, std::uint64_t{8} << 30) : "";
  if (is_original(text)) return load_original(text, std::move(spec), journal.string());

  Campaign campaign;
  campaign.spec = std::move(spec);
  if (!fs::exists(spec_file)) campaign.problems.push_back("spec.json: the file is missing");
  JournalContent content = parse_journal(text, journal.string());
  campaign.receipts = std::move(content.receipts);
  campaign.receipts_sha256 = content.sha256;

  std::map<std::string, std::size_t> last;  // cell key -> its last receipt
  std::vector<std::string> order;
  for (std::size_t i = 0; i < campaign.receipts.size(); ++i) {
    const Receipt& receipt = campaign.receipts[i];
    if (receipt.kind == "cell") {
      if (!last.contains(receipt.key)) order.push_back(receipt.key);
      last[receipt.key] = i;
    } else if (receipt.kind == "parity") {
      campaign.parity.push_back(load_parity(dir, receipt, campaign.problems));
    }
  }
  for (const std::string& key : order) {
    campaign.cells.push_back(load_cell(dir, campaign.receipts[last.at(key)], campaign.problems));
  }
  for (const std::string& key : expected_keys(campaign.spec)) {
    if (!last.contains(key)) campaign.pending.push_back(key);
  }
  if (passes) {
    for (CampaignCell& cell : campaign.cells) {
      cell.passes = load_passes(dir, cell, campaign.problems);
    }
  }
  return campaign;
}

Campaign load_campaign(const fs::path& dir_or_h5) {
  if (fs::is_directory(dir_or_h5)) {
    const bool only_store = !fs::exists(dir_or_h5 / kJournalName) &&
                            !fs::exists(dir_or_h5 / kSpecFile) &&
                            fs::exists(dir_or_h5 / kStoreFile);
    return only_store ? read_campaign_h5(dir_or_h5 / kStoreFile) : load_campaign_folder(dir_or_h5);
  }
  return read_campaign_h5(dir_or_h5);
}

}  // namespace poros
