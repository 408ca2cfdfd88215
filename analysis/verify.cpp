// SPDX-License-Identifier: Apache-2.0
#include "analysis/verify.hpp"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "analysis/escape.hpp"
#include "analysis/report.hpp"
#include "base/error.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "receipts/campaign_store.hpp"
#include "receipts/hdf5_store.hpp"
#include "receipts/journal.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

/// Artifacts of receipts other than a cell's last one (load_campaign_folder checks those).
void check_artifacts(const fs::path& dir, const Campaign& campaign, Verification& result) {
  std::map<std::string, const Receipt*> last;  // an artifact's path -> the last receipt naming it
  for (const Receipt& receipt : campaign.receipts) {
    if (!receipt.artifact_path.empty()) last[receipt.artifact_path] = &receipt;
  }
  result.artifacts = last.size();
  for (const auto& [path, receipt] : last) {
    const auto mentions = [&path = path](const std::string& problem) {
      return problem.starts_with(path + ": ");
    };
    if (std::any_of(result.problems.begin(), result.problems.end(), mentions)) continue;
    const std::string where = fmt::format("{} (receipt {})", path, receipt->seq);
    const fs::path file = dir / path;
    if (fs::path(path).is_absolute() || path.find("..") != std::string::npos) {
      result.problems.push_back(where + ": the path leaves the campaign folder");
    } else if (!fs::is_regular_file(file)) {
      result.problems.push_back(where + ": the record is missing");
    } else if (sha256_hex(read_file(file)) != receipt->artifact_sha256) {
      result.problems.push_back(where + ": the record was altered (its sha256 is another)");
    }
  }
}

void check_cells(const Campaign& campaign, const std::string& spec_sha256, Verification& result) {
  for (const CampaignCell& cell : campaign.cells) {
    result.passes += cell.passes.size();
    if (cell.artifact.spec_sha256 != spec_sha256 && !campaign.original_format) {
      result.problems.push_back(
          fmt::format("{}: was made from another spec ({}) than spec.json ({})", cell.path,
                      cell.artifact.spec_sha256.substr(0, 12), spec_sha256.substr(0, 12)));
    }
    for (const CampaignPass& pass : cell.passes) {
      if (pass.record.cell_key != cell.artifact.cell_key) {
        result.problems.push_back(fmt::format("{}: belongs to another cell", pass.path));
      }
    }
  }
}

void check_report(const fs::path& file, const std::string& expected, bool& present,
                  Verification& result) {
  present = fs::exists(file);
  if (present && read_file(file) != expected) {
    result.problems.push_back(
        fmt::format("{}: is not what this program makes of the records; make it anew with "
                    "\"poros bench report\"",
                    file.filename().string()));
  }
}

void check_derived(const fs::path& dir, const Campaign& campaign, Verification& result) {
  result.store = fs::exists(dir / kStoreFile);
  if (result.store) {
    try {
      const Campaign stored = read_campaign_h5(dir / kStoreFile);
      if (stored.receipts_sha256 != campaign.receipts_sha256) {
        result.problems.push_back(fmt::format(
            "{}: holds other receipts than {}; make it anew with \"poros bench gather\"",
            kStoreFile, kJournalName));
      } else if (report_html(stored) != report_html(campaign)) {
        result.problems.push_back(
            fmt::format("{}: gives another report than the records", kStoreFile));
      }
    } catch (const Error& error) {
      result.problems.push_back(fmt::format("{}: {}", kStoreFile, error.what()));
    }
  }
  check_report(dir / "report.html", report_html(campaign), result.html, result);
  check_report(dir / "report.md", report_markdown(campaign), result.markdown, result);
}

}  // namespace

Verification verify_campaign(const fs::path& dir) {
  if (!fs::exists(dir / kJournalName) && !fs::exists(dir / kSpecFile)) {
    fail(Fault::input, "{}: not a campaign folder: neither {} nor {} is in it", dir.string(),
         kJournalName, kSpecFile);
  }
  Verification result;
  result.name = fs::absolute(dir / "x").lexically_normal().parent_path().filename().string();
  try {
    const Campaign campaign = load_campaign_folder(dir);
    result.receipts = campaign.receipts.size();
    result.cells = campaign.cells.size();
    result.pending = campaign.pending.size();
    result.receipts_sha256 = campaign.receipts_sha256;
    result.original_format = campaign.original_format;
    result.problems = campaign.problems;
    result.spec_sha256 =
        json_find<std::string>(campaign.spec, "spec_sha256", kSpecFile).value_or("");
    if (!campaign.original_format) {
      const JournalContent journal = read_journal(dir / kJournalName);
      if (journal.torn_bytes > 0) {
        result.problems.push_back(fmt::format("{}: the last {} bytes are no whole receipt",
                                              kJournalName, journal.torn_bytes));
      }
    }
    check_artifacts(dir, campaign, result);
    check_cells(campaign, result.spec_sha256, result);
    check_derived(dir, campaign, result);
  } catch (const Error& error) {
    result.problems.push_back(error.what());
  }
  return result;
}

std::vector<fs::path> campaigns_below(const fs::path& parent) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(parent)) {
    if (fs::exists(entry.path() / kJournalName) || fs::exists(entry.path() / kSpecFile)) {
      found.push_back(entry.path());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string validation_index(const std::vector<Verification>& verified) {
  std::string lines, rows;
  for (const Verification& v : verified) {
    if (!v.problems.empty()) continue;
    lines += fmt::format("{} {} {}\n", v.name, v.spec_sha256, v.receipts_sha256);
    rows += fmt::format("| [{}]({}/) | {} | {} | {} | `{}` | `{}` | {} |\n", markdown_text(v.name),
                        relative_url(v.name), v.cells, v.pending, v.receipts,
                        v.spec_sha256.substr(0, 16), v.receipts_sha256.substr(0, 16),
                        v.original_format ? "Python original, without checksums" : "checked");
  }
  return fmt::format(
      "# Campaigns that verify\n\nMade by `poros bench verify --index`; not to be edited.\n\n"
      "Digest (sha256 over name, spec hash and receipts hash of each): `{}`\n\n"
      "| Campaign | Cells | Not run | Receipts | Spec | Receipts hash | Records |\n"
      "|---|--:|--:|--:|---|---|---|\n{}",
      sha256_hex(lines), rows);
}

Json to_json(const Verification& v) {
  return {{"campaign", v.name},
          {"verified", v.problems.empty()},
          {"original_format", v.original_format},
          {"spec_sha256", v.spec_sha256},
          {"receipts_sha256", v.receipts_sha256},
          {"receipts", v.receipts},
          {"artifacts", v.artifacts},
          {"passes", v.passes},
          {"cells", v.cells},
          {"pending", v.pending},
          {"checked_store", v.store},
          {"checked_html", v.html},
          {"checked_markdown", v.markdown},
          {"problems", v.problems}};
}

}  // namespace poros
