// SPDX-License-Identifier: Apache-2.0
#include "receipts/shards.hpp"

#include <algorithm>
#include <map>
#include <system_error>

#include <fmt/format.h>

#include "base/error.hpp"
#include "base/files.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

std::string text_field(const Receipt& receipt, const char* name) {
  return json_find<std::string>(receipt.fields, name, "receipt").value_or("");
}

/// How many receipts of each shard a journal has. They stand in the shard's order.
std::map<std::string, std::int64_t> gathered_counts(const std::vector<Receipt>& root) {
  std::map<std::string, std::int64_t> counts;
  for (const Receipt& receipt : root) {
    if (const std::string shard = text_field(receipt, "shard"); !shard.empty()) ++counts[shard];
  }
  return counts;
}

}  // namespace

std::vector<std::string> shard_names(const fs::path& dir) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir / kShardFolder, error)) {
    if (fs::exists(entry.path() / kJournalName, error)) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

fs::path shard_journal(const fs::path& dir, const std::string& name) {
  if (!is_valid_id(name)) {
    fail(Fault::usage,
         "shard \"{}\": expected letters, digits, '.', '_', '-', at most 64, not beginning with a "
         "dot",
         name);
  }
  return child_path(dir / kShardFolder, name) / kJournalName;
}

std::vector<Receipt> all_receipts(const fs::path& dir, const std::string& but_not) {
  std::vector<Receipt> all = read_journal(dir / kJournalName).receipts;
  const auto counts = gathered_counts(all);
  if (!but_not.empty()) {
    std::erase_if(all,
                  [&](const Receipt& receipt) { return text_field(receipt, "shard") == but_not; });
  }
  for (const std::string& name : shard_names(dir)) {
    if (name == but_not) continue;
    std::vector<Receipt> own = read_journal(shard_journal(dir, name)).receipts;
    const auto known = counts.find(name);
    const std::int64_t skip = known == counts.end() ? 0 : known->second;
    for (std::size_t i = static_cast<std::size_t>(skip); i < own.size(); ++i) {
      all.push_back(std::move(own[i]));
    }
  }
  return all;
}

std::int64_t ungathered_receipts(const fs::path& dir) {
  const std::vector<std::string> names = shard_names(dir);
  if (names.empty()) return 0;
  auto counts = gathered_counts(read_journal(dir / kJournalName).receipts);
  std::int64_t missing = 0;
  for (const std::string& name : names) {
    const auto own = read_journal(shard_journal(dir, name)).receipts.size();
    missing += std::max<std::int64_t>(0, static_cast<std::int64_t>(own) - counts[name]);
  }
  return missing;
}

std::size_t check_shard(const std::vector<Receipt>& root, const std::string& shard,
                        const std::vector<Receipt>& source) {
  std::size_t known = 0;
  for (const Receipt& receipt : root) {
    if (text_field(receipt, "shard") != shard) continue;
    const bool same =
        known < source.size() && text_field(receipt, "shard_sha256") == line_sha256(source[known]);
    if (!same) {
      fail(Fault::input,
           "shard {}: its receipt {} is not the one that results.jsonl has gathered (seq {}): the "
           "shard's journal was changed or cut. Restore it; or remove {}/{} to keep what is "
           "gathered, and go on under another --shard-name",
           shard, known, receipt.seq, kShardFolder, shard);
    }
    ++known;
  }
  return known;
}

std::vector<Receipt> append_shard(JournalWriter& root, const std::string& shard,
                                  const std::vector<Receipt>& source) {
  const std::size_t known = check_shard(root.receipts(), shard, source);
  std::vector<Receipt> news;
  for (std::size_t i = known; i < source.size(); ++i) {
    Receipt receipt = source[i];
    receipt.fields["shard"] = shard;
    receipt.fields["shard_seq"] = source[i].seq;
    receipt.fields["shard_sha256"] = line_sha256(source[i]);
    news.push_back(std::move(receipt));
  }
  if (news.empty()) return news;
  return root.append_all(std::move(news));
}

void refuse_mixed_cells(const std::vector<Receipt>& receipts, const std::string& campaign) {
  struct Seen {
    std::string build, gpu;
  };
  std::map<std::string, Seen> cells;
  for (const Receipt& receipt : receipts) {
    if (receipt.kind != "attempt" || text_field(receipt, "status") != "ok") continue;
    const Seen now{text_field(receipt, "cell_build"), text_field(receipt, "gpu_name")};
    const auto [known, is_new] = cells.emplace(receipt.key, now);
    if (is_new) continue;
    const auto differs = [](const std::string& a, const std::string& b) {
      return !a.empty() && !b.empty() && a != b;
    };
    const bool build = differs(known->second.build, now.build);
    if (!build && !differs(known->second.gpu, now.gpu)) continue;
    fail(Fault::input,
         "{}: cell {:.8} ({}) was measured {} ({:.40} and {:.40}); the numbers of one cell must "
         "come from one: gather them apart, or give --allow-mixed",
         campaign, receipt.key, text_field(receipt, "method"),
         build ? "by two builds of its program" : "on two models of GPU",
         build ? known->second.build : known->second.gpu, build ? now.build : now.gpu);
  }
}

}  // namespace poros
