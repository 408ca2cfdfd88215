// SPDX-License-Identifier: Apache-2.0
#include "campaign/ledger.hpp"

#include "base/json.hpp"

namespace poros {

Ledger::Ledger(const std::vector<Receipt>& receipts) {
  for (const Receipt& receipt : receipts) add(receipt);
}

void Ledger::add(const Receipt& receipt) {
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
    entry.seq = receipt.seq;
    entry.path = receipt.artifact_path;
    entry.sha256 = receipt.artifact_sha256;
    attempts_[{entry.key, entry.purpose, entry.pass}] = std::move(entry);
  } else if (receipt.kind == "cell" || receipt.kind == "parity") {
    ResultEntry entry{json_get<std::string>(receipt.fields, "status", origin), text("reason"),
                      receipt.seq, receipt.artifact_path, receipt.artifact_sha256};
    (receipt.kind == "cell" ? cells_ : parity_)[receipt.key] = std::move(entry);
  }
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
