// SPDX-License-Identifier: Apache-2.0
#include "campaign/summary.hpp"

#include <algorithm>

#include "campaign/parity_run.hpp"
#include "receipts/receipt.hpp"

namespace poros {
namespace {

constexpr const char* kMissing = "--";

std::string number(const char* format, const std::optional<double>& value) {
  return value ? fmt::format(fmt::runtime(format), *value) : kMissing;
}

std::string status_text(const RunArtifact& artifact) {
  std::string text = artifact.status;
  if (artifact.status != "ok" && artifact.reason) text += "/" + *artifact.reason;
  for (const std::string& flag : artifact.flags) text += " " + flag;
  return text;
}

/// "exact", "differs" or "--" for the two arms that parity compares.
std::string parity_text(const RunArtifact& artifact, const std::vector<Json>& parity) {
  for (const Json& record : parity) {
    if (record.value("cell_key_a", "") != artifact.cell_key &&
        record.value("cell_key_b", "") != artifact.cell_key) {
      continue;
    }
    const auto exact = json_find<bool>(record, "bitwise_exact", "parity");
    if (exact) return *exact ? "exact" : "differs";
  }
  return kMissing;
}

/// Width in columns of a terminal: bytes that continue a UTF-8 character take none.
std::size_t width(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

}  // namespace

std::string aligned(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - width(row[i]), ' ');
      line += (i == 0 ? "" : "  ") + (i < 2 ? row[i] + padding : padding + row[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

int exit_code_of(const CampaignResult& result) {
  if (result.failed_cells > 0) return kFailed;
  if (result.stopped || result.out_of_time || !result.unmatched.empty()) return kStoppedEarly;
  const bool cell_failed =
      std::any_of(result.artifacts.begin(), result.artifacts.end(),
                  [](const RunArtifact& artifact) { return artifact.status == "error"; });
  const bool parity_failed =
      std::any_of(result.parity.begin(), result.parity.end(), [](const Json& record) {
        return !json_find<bool>(record, "bitwise_exact", "parity").value_or(false);
      });
  return cell_failed || parity_failed ? kFailed : kDone;
}

std::string summary_table(const CampaignResult& result) {
  std::vector<std::vector<std::string>> rows{{"cell", "status", "passes", "s/step", "tokens/s",
                                              "device MiB", "host MiB", "loss first 10", "last 10",
                                              "vs resident", "parity"}};
  for (const RunArtifact& a : result.artifacts) {
    rows.push_back({a.method + " " + a.arch + " " + a.precision, status_text(a),
                    fmt::format("{}/{}", a.n_passes, a.n_passes_expected),
                    number("{:.3g}", a.s_per_step), number("{:.0f}", a.tok_per_sec),
                    number("{:.1f}", a.vram_peak_mb), number("{:.0f}", a.host_rss_peak_mb),
                    number("{:.3f}", a.mean_loss_first10), number("{:.3f}", a.mean_loss_last10),
                    number("{:.2f}x", a.slowdown_vs_resident_x), parity_text(a, result.parity)});
  }
  std::string text = aligned(rows);
  for (const RunArtifact& a : result.artifacts) {
    const bool suspect = a.status == "ok" && a.reason;
    if (a.status == "ok" && !suspect) continue;
    text += fmt::format("{} {}: {}\n", a.method, a.arch,
                        suspect ? "suspect: " + *a.reason : a.error_message.value_or(a.status));
  }
  for (const Json& record : result.parity) text += parity_line(record) + "\n";
  return text;
}

Json summary_json(const CampaignResult& result, const std::string& dir) {
  Json cells = Json::array(), parity = Json::array();
  for (const RunArtifact& artifact : result.artifacts) {
    Json fields = scalar_fields(to_json(artifact));
    fields["flags"] = artifact.flags;
    cells.push_back(std::move(fields));
  }
  for (const Json& record : result.parity) parity.push_back(scalar_fields(record));
  return {{"campaign", dir},
          {"exit_code", exit_code_of(result)},
          {"stopped", result.stopped},
          {"out_of_time", result.out_of_time},
          {"unmatched", result.unmatched},
          {"passes_total", result.passes_total},
          {"passes_left", result.passes_left},
          {"cells", cells},
          {"parity", parity}};
}

}  // namespace poros
