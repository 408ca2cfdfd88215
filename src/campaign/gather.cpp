// SPDX-License-Identifier: Apache-2.0
#include "campaign/gather.hpp"

#include <algorithm>
#include <set>
#include <system_error>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "campaign/folder.hpp"
#include "campaign/open_campaign.hpp"
#include "receipts/hdf5_store.hpp"
#include "receipts/shards.hpp"
#include "spec/spec_json.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

/// One journal that is joined, with the name that its receipts get.
struct Source {
  std::string name;
  fs::path journal;
};

std::int64_t append_sources(JournalWriter& root, const std::vector<Source>& sources,
                            const fs::path& campaign, const GatherOptions& options) {
  std::vector<std::vector<Receipt>> receipts;
  std::vector<Receipt> all = root.receipts();
  for (const Source& source : sources) {
    receipts.push_back(read_journal(source.journal).receipts);
    all.insert(all.end(), receipts.back().begin(), receipts.back().end());
  }
  if (!options.allow_mixed) refuse_mixed_cells(all, campaign.string());
  std::int64_t appended = 0;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    appended += static_cast<std::int64_t>(append_shard(root, sources[i].name, receipts[i]).size());
  }
  return appended;
}

fs::path plain_name(const fs::path& dir) {
  const fs::path absolute = fs::absolute(dir).lexically_normal();
  return absolute.has_filename() ? absolute.filename() : absolute.parent_path().filename();
}

bool is_below(const fs::path& path, const fs::path& folder) {
  const auto [at, end] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return at == folder.end() && end != path.end();
}

Json read_spec_file(const fs::path& dir) {
  const fs::path file = CampaignFolder(dir).spec();
  std::error_code error;
  if (!fs::exists(file, error)) {
    fail(Fault::input, "{}: no campaign: there is no spec.json in it", dir.string());
  }
  return read_campaign_spec(file);
}

void refuse_other_spec(const Json& first, const fs::path& first_dir, const Json& other,
                       const fs::path& other_dir) {
  const auto differences = spec_differences(json_get<Json>(first, "spec", first_dir.string()),
                                            json_get<Json>(other, "spec", other_dir.string()));
  if (differences.empty()) return;
  std::string list;
  for (const SpecDifference& difference : differences) {
    list += fmt::format("\n  {}: {} there, {} here", difference.path, difference.before,
                        difference.after);
  }
  fail(Fault::input,
       "{}: is of another spec than {}:{}\n`poros bench report` and `compare` take campaigns of "
       "different specs as they are",
       other_dir.string(), first_dir.string(), list);
}

/// Copies a record that a receipt names. What is there already must be the same.
void copy_record(const fs::path& from, const fs::path& to, const std::string& relative,
                 const std::string& sha256) {
  std::error_code error;
  const fs::path source = from / relative, target = to / relative;
  if (!fs::exists(source, error)) return;  // the store and the report name it as missing
  const std::string text = read_file(source);
  if (sha256_hex(text) != sha256) return;  // superseded under the same name, or altered: named too
  if (fs::exists(target, error)) {
    if (sha256_file(target) == sha256) return;
    fail(Fault::input,
         "{}: another record is there under the same name as {}; both folders have measured the "
         "same cell: join only one of them",
         target.string(), source.string());
  }
  fs::create_directories(target.parent_path());
  write_file_durably(target, text);
}

void copy_logs(const fs::path& from, const fs::path& to) {
  std::error_code error;
  if (!fs::exists(from / "logs", error)) return;
  fs::copy(from / "logs", to / "logs",
           fs::copy_options::recursive | fs::copy_options::skip_existing, error);
  if (error) fail(Fault::io, "{}: can't be copied: {}", (from / "logs").string(), error.message());
}

Gathered finish(const fs::path& dir, std::int64_t appended) {
  Gathered result;
  result.appended = appended;
  result.campaign = gather(dir);
  return result;
}

}  // namespace

Gathered gather_shards(const fs::path& dir, const GatherOptions& options) {
  std::vector<Source> sources;
  for (const std::string& name : shard_names(dir)) {
    sources.push_back({name, shard_journal(dir, name)});
  }
  if (ungathered_receipts(dir) == 0) {
    const std::vector<Receipt> root = read_journal(CampaignFolder(dir).journal()).receipts;
    for (const Source& source : sources) {
      check_shard(root, source.name, read_journal(source.journal).receipts);
    }
    return finish(dir, 0);
  }
  JournalWriter root = JournalWriter::open(CampaignFolder(dir).journal());
  try {
    const std::int64_t appended = append_sources(root, sources, dir, options);
    root.close();
    return finish(dir, appended);
  } catch (...) {
    try {
      root.close();
    } catch (const Error&) {  // the first failure is what counts
    }
    throw;
  }
}

Gathered gather_campaigns(const std::vector<fs::path>& sources, const fs::path& out,
                          const GatherOptions& options) {
  const Json first = read_spec_file(sources.front());
  std::vector<Source> journals;
  std::set<std::string> names, campaigns;
  const fs::path target = fs::weakly_canonical(out);
  for (const fs::path& source : sources) {
    const fs::path real = fs::weakly_canonical(source);
    if (target == real || is_below(target, real)) {
      fail(Fault::input, "{}: is, or lies in, {}, which is to be joined; give a folder of its own",
           out.string(), source.string());
    }
    const Json spec = read_spec_file(source);
    if (!campaigns.insert(spec.value("campaign_id", real.string())).second) {
      fail(Fault::input, "{}: is the same campaign as another one that is named, or a copy of it",
           source.string());
    }
    refuse_other_spec(first, sources.front(), spec, source);
    const std::string name = plain_name(source).string();
    if (!names.insert(name).second) {
      fail(Fault::input, "{}: two of the campaigns are called {}; rename one of the folders",
           source.string(), name);
    }
    journals.push_back({name, CampaignFolder(source).journal()});
    for (const std::string& shard : shard_names(source)) {
      if (ungathered_receipts(source) > 0) {
        fail(Fault::input, "{}: shard {} is not gathered; run `poros bench gather {}` first",
             source.string(), shard, source.string());
      }
    }
  }
  const CampaignFolder folder(out);
  std::error_code error;
  if (fs::exists(folder.spec(), error)) {
    refuse_other_spec(first, sources.front(), read_spec_file(out), out);
  } else if (fs::exists(out, error) && !fs::is_empty(out, error)) {
    fail(Fault::input, "{}: holds other files than a campaign; give a new folder", out.string());
  }
  fs::create_directories(out);
  if (!fs::exists(folder.spec(), error)) {
    write_file_durably(folder.spec(), dump_json(first, 1) + "\n");
  }
  JournalWriter root = JournalWriter::open(folder.journal());
  try {
    for (std::size_t i = 0; i < sources.size(); ++i) {
      for (const Receipt& receipt : read_journal(journals[i].journal).receipts) {
        if (receipt.artifact_path.empty()) continue;
        copy_record(sources[i], out, receipt.artifact_path, receipt.artifact_sha256);
      }
      copy_logs(sources[i], out);
    }
    const std::int64_t appended = append_sources(root, journals, out, options);
    root.close();
    return finish(out, appended);
  } catch (...) {
    try {
      root.close();
    } catch (const Error&) {
    }
    throw;
  }
}

}  // namespace poros
