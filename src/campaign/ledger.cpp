// SPDX-License-Identifier: Apache-2.0
#include "campaign/ledger.hpp"

#include "base/json.hpp"

namespace poros {

Ledger::Ledger(const std::vector<Receipt>& receipts) {
  for (const Receipt& receipt : receipts) add(receipt);
}

void Ledger::add(const Receipt& receipt, bool earlier) {
  const std::int64_t seq = earlier ? -1 : receipt.seq;
  const std::string origin = fmt::format("results.jsonl: receipt {}", receipt.seq);
  const auto text = [&](const char* name) {
    return json_find<std::string>(receipt.fields, name, origin).value_or("");
  };
  if (receipt.kind == "attempt") {
    AttemptEntry entry;
    entry.key = receipt.key;
    entry.purpose = json_get<std::string>(receipt.fields, "purpose", origin);
    entry.pass = json_get<std::int64_t>(receipt.fields, "pass", origin);
    entry.attempt = json_get<std::int64_t>(receipt.fields, "attempt", origin);
    entry.status = json_get<std::string>(receipt.fields, "status", origin);
    entry.reason = text("reason");
    entry.cell_build = text("cell_build");
    entry.seq = seq;
    entry.host = text("host");
    entry.gpu_uuid = text("gpu_uuid");
    entry.wall_s = json_find<double>(receipt.fields, "wall_s", origin);
    entry.s_per_step = json_find<double>(receipt.fields, "s_per_step", origin);
    entry.path = receipt.artifact_path;
    entry.sha256 = receipt.artifact_sha256;
    attempts_[{entry.key, entry.purpose, entry.pass}] = std::move(entry);
  } else if (receipt.kind == "cell" || receipt.kind == "parity") {
    ResultEntry entry{json_get<std::string>(receipt.fields, "status", origin),
                      text("reason"),
                      seq,
                      receipt.artifact_path,
                      receipt.artifact_sha256,
                      text("error_message")};
    (receipt.kind == "cell" ? cells_ : parity_)[receipt.key] = std::move(entry);
  }
}

std::int64_t Ledger::supersede(const std::string& key, const std::string& gpu_uuid) {
  std::int64_t count = 0;
  for (auto at = attempts_.lower_bound({key, "", 0}); at != attempts_.end(); ++at) {
    AttemptEntry& entry = at->second;
    if (entry.key != key) break;
    if (entry.superseded || entry.gpu_uuid.empty() || entry.gpu_uuid == gpu_uuid) continue;
    count += entry.counts() && entry.purpose == "timed" ? 1 : 0;
    entry.superseded = true;
  }
  return count;
}

const AttemptEntry* Ledger::last_attempt(const std::string& key, const std::string& purpose,
                                         std::int64_t pass) const {
  const auto found = attempts_.find({key, purpose, pass});
  return found == attempts_.end() ? nullptr : &found->second;
}

std::int64_t Ledger::attempts(const std::string& key, const std::string& purpose,
                              std::int64_t pass) const {
  const AttemptEntry* last = last_attempt(key, purpose, pass);
  return last == nullptr ? 0 : last->attempt;
}

std::vector<AttemptEntry> Ledger::passes(const std::string& key, const std::string& purpose) const {
  std::vector<AttemptEntry> result;
  for (auto at = attempts_.lower_bound({key, purpose, 0}); at != attempts_.end(); ++at) {
    const auto& [entry_key, entry_purpose, pass] = at->first;
    if (entry_key != key || entry_purpose != purpose) break;
    result.push_back(at->second);
  }
  return result;
}

const ResultEntry* Ledger::cell(const std::string& key) const {
  const auto found = cells_.find(key);
  return found == cells_.end() ? nullptr : &found->second;
}

const ResultEntry* Ledger::parity(const std::string& group) const {
  const auto found = parity_.find(group);
  return found == parity_.end() ? nullptr : &found->second;
}

}  // namespace poros
