// SPDX-License-Identifier: Apache-2.0
// Reports: pure functions of a campaign's records. Same input, same bytes, whatever the time, the
// locale and the working folder.
#pragma once

#include <filesystem>
#include <string>

#include "analysis/report_model.hpp"
#include "receipts/campaign_store.hpp"

namespace poros {

/// One self-contained page: no network reference, readable with scripts off.
[[nodiscard]] std::string report_html(const Campaign& campaign);

[[nodiscard]] std::string report_html(const ReportModel& model);

[[nodiscard]] std::string report_markdown(const Campaign& campaign);
[[nodiscard]] std::string report_markdown(const ReportModel& model);

struct ReportPaths {
  std::filesystem::path html, markdown;  // empty: not written
};

/// Writes report.html and report.md (those that are asked for) into `out_dir`, durably.
/// @param source a campaign folder, or a campaign.h5 alone
ReportPaths write_report(const std::filesystem::path& source, const std::filesystem::path& out_dir,
                         bool html, bool markdown);

}  // namespace poros
