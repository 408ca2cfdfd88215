// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "analysis/escape.hpp"
#include "analysis/format.hpp"
#include "analysis/report.hpp"
#include "analysis/report_model.hpp"

namespace poros {
namespace {

std::string row(const std::vector<std::string>& cells) {
  std::string line = "|";
  for (const auto& cell : cells) line += " " + cell + " |";
  return line + "\n";
}

std::string header(const std::vector<std::string>& names, const std::string& alignment) {
  std::string rule = "|";
  for (const char side : alignment) rule += side == 'r' ? "--:|" : "---|";
  return row(names) + rule + "\n";
}

std::string link(const std::string& record, const std::string& text) {
  if (record.empty() || text == kMissing) return markdown_text(text);
  return fmt::format("[{}]({})", markdown_text(text), relative_url(record));
}

std::string results(const Group& group) {
  std::string md = fmt::format("### {}\n\n", markdown_text(group.title()));
  if (group.card_mb && !group.cpu) {
    md += fmt::format("Device memory: {}.\n\n", memory(group.card_mb));
  }
  md += header(
      {"Method", "Outcome", group.cpu ? "Peak host memory (RSS)" : "Peak memory", "Time per step",
       "Least\u2013most", "Throughput", "Passes", "Memory ratio", "Time ratio"},
      "llrrrrrrr");
  for (const Arm& arm : group.arms) {
    md +=
        row({link(arm.record, arm.method), markdown_text(arm.words),
             link(arm.record, memory(arm.memory_mb)), link(arm.record, seconds(arm.s_per_step)),
             link(arm.record, seconds_range(arm.s_low, arm.s_high)),
             link(arm.record, token_rate(arm.tokens_per_s)),
             arm.record.empty() ? kMissing
                                : fmt::format("{} of {}", arm.passes_ok, arm.passes_expected),
             link(arm.record, factor(arm.memory_ratio)), link(arm.record, factor(arm.time_ratio))});
  }
  if (!group.reference.empty()) {
    md += fmt::format("\nRatios are against {}.\n", markdown_text(group.reference));
  }
  return md + "\n";
}

std::string parity(const ReportModel& model) {
  std::string md = header({"Group", "Compared", "Bitwise exact", "Steps", "Largest loss difference",
                           "Largest weight difference"},
                          "llrrrr");
  for (const Group& group : model.groups) {
    for (const Arm& arm : group.arms) {
      if (arm.method != "poros" && !arm.parity) continue;
      const Parity p = arm.parity.value_or(Parity{"resident", {}, {}, {}, {}, ""});
      const std::string exact = p.bitwise_exact ? (*p.bitwise_exact ? "yes" : "no") : kMissing;
      md +=
          row({markdown_text(group.title()), markdown_text(arm.method + " against " + p.reference),
               link(p.record, exact), link(p.record, p.steps ? grouped(*p.steps) : kMissing),
               link(p.record, difference(p.loss_max_diff)),
               link(p.record, difference(p.weight_max_diff))});
    }
  }
  return md + "\n";
}

std::string failures(const ReportModel& model) {
  std::string rows;
  for (const Group& group : model.groups) {
    for (const Arm& arm : group.arms) {
      if (arm.outcome == Outcome::ok) continue;
      rows +=
          row({markdown_text(group.title()), link(arm.record, arm.method), markdown_text(arm.words),
               markdown_text(arm.reason), markdown_text(arm.message)});
    }
  }
  if (rows.empty()) return "None: every cell ended ok.\n\n";
  return header({"Group", "Method", "Outcome", "Reason", "Message"}, "lllll") + rows + "\n";
}

std::string list(const std::vector<std::string>& items) {
  std::string md;
  for (const auto& item : items) md += "- " + markdown_text(item) + "\n";
  return md + "\n";
}

std::string pairs(const std::vector<NameValue>& items) {
  std::string md = header({"Name", "Value"}, "ll");
  for (const auto& [name, value] : items) {
    md += row({markdown_text(name), value.empty() ? kMissing : markdown_text(value)});
  }
  return md + "\n";
}

std::string environments(const std::vector<Environment>& items) {
  std::string md;
  for (const Environment& item : items) {
    md += fmt::format("{} ({}):\n\n", markdown_text(item.title), counted(item.cells, "cell"));
    md += pairs(item.facts);
  }
  return md;
}

}  // namespace

std::string report_markdown(const Campaign& campaign) {
  return report_markdown(make_report_model(campaign));
}

std::string report_markdown(const ReportModel& model) {
  std::string md = fmt::format("# {}\n\n", markdown_text(model.title));
  md += fmt::format("Poros Bench report. Device {}, protocol {}.",
                    model.device.empty() ? kMissing : markdown_text(model.device),
                    model.protocol.empty() ? kMissing : markdown_text(model.protocol));
  if (model.original_format) md += " Records of the Python original.";
  if (!model.period.empty()) md += " " + markdown_text(model.period) + ".";
  md += "\n\n## Summary\n\n" + list(model.summary);
  md += "## Results\n\n";
  for (const Group& group : model.groups) md += results(group);
  if (!model.ratios.empty()) {
    md += "## Ratios over all comparisons\n\n";
    md += header({"Method", "Against", "Memory", "Time per step", "Groups expected", "Compared",
                  "Excluded as flagged"},
                 "llrrrrr");
    for (const MethodSummary& s : model.ratios) {
      md += row({markdown_text(s.method), markdown_text(s.reference), factor(s.memory_ratio),
                 factor(s.time_ratio), std::to_string(s.groups), std::to_string(s.compared),
                 std::to_string(s.excluded)});
    }
    md += "\n";
  }
  md += "## Parity\n\n" + parity(model);
  md += "## Cells that are not ok\n\n" + failures(model);
  md += "## What was held identical\n\n" + list(model.held_identical);
  if (!model.not_identical.empty()) md += "Not held identical:\n\n" + list(model.not_identical);
  md += "### Settings of the spec\n\n" + pairs(model.settings);
  md += "## Hardware and software\n\n" + environments(model.environments) +
        environments(model.software);
  md += "## Records\n\n" + pairs({{"sha256 of the spec", model.spec_sha256},
                                  {"sha256 of the receipts", model.receipts_sha256}});
  if (!model.problems.empty()) md += "Missing or altered:\n\n" + list(model.problems);
  md +=
      "GiB is 2^30 bytes, MiB 2^20. `--`: not measured. Times are medians over passes of the "
      "pass's median after the warm-up steps.\n";
  return md;
}

}  // namespace poros
