// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

#include "analysis/escape.hpp"
#include "analysis/format.hpp"
#include "analysis/report_html_parts.hpp"
#include "analysis/svg_chart.hpp"

namespace poros {
namespace {

constexpr const char* kOutcomeClasses[] = {"ok", "flagged", "oom", "error", "skipped", "pending"};
constexpr const char* kOutcomeSymbols[] = {"\u2713", "\u26a0", "\u2715", "!", "\u2013", "\u2026"};

std::string passes_text(const Arm& arm) {
  return fmt::format("{} of {}", arm.passes_ok, arm.passes_expected);
}

/// Says beside a number that it stands on fewer passes than planned.
std::string fewer_passes(const Arm& arm) {
  if (!arm.s_per_step || arm.passes_ok == arm.passes_expected) return "";
  return fmt::format("<span class=sub>{} passes only</span>", passes_text(arm));
}

std::string sub(const std::string& text) {
  return text.empty() ? "" : "<span class=sub>" + text + "</span>";
}

std::string line(const std::string& html) {
  return "<span class=line>" + html + "</span>";
}

std::string group_label(const Group& group) {
  return html_text(group.model.empty() ? group.model_id : group.model);
}

std::string where(const Group& group) {
  std::string text = html_text(group.precision);
  if (!group.hardware.empty()) text += (text.empty() ? "" : ", ") + html_text(group.hardware);
  if (group.card_mb && !group.cpu) text += ", " + memory(group.card_mb);
  return text;
}

double memory_scale(const Group& group) {
  double most = group.cpu ? 0 : group.card_mb.value_or(0);
  for (const Arm& arm : group.arms) most = std::max(most, arm.memory_mb.value_or(0));
  return most;
}

std::string interval_text(const std::optional<Interval>& interval) {
  if (!interval) return "";
  return fmt::format("{}\u2013{}", significant(interval->low), significant(interval->high));
}

std::string exact_text(const std::optional<Parity>& parity) {
  if (!parity || !parity->bitwise_exact) return kMissing;
  return *parity->bitwise_exact ? "yes" : "no";
}

/// A heading as text in a style sheet's string. Letters that could end it, and brackets (a name
/// such as "url(" would look like a reference), are left out.
std::string css_label(const std::string& html) {
  std::string label;
  for (const char c : html) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == ' ' || c == '_' || c == '-' || c == '.';
    if (plain) label += c;
  }
  return label;
}

}  // namespace

std::string record_link(const std::string& record, const std::string& text, bool first) {
  const std::string escaped = html_text(text);
  if (record.empty() || text == kMissing) return escaped;
  return fmt::format("<a href=\"{}\"{}>{}</a>", relative_url(record), first ? "" : " tabindex=-1",
                     escaped);
}

HtmlTable::HtmlTable(std::string id, const std::string& caption, std::vector<Heading> headings,
                     bool sortable) {
  html_ = "<style>@media screen and (max-width: 760px) {";
  for (std::size_t i = 0; i < headings.size(); ++i) {
    html_ += fmt::format("#{} td:nth-child({})::before{{content:\"{}\"}}", id, i + 1,
                         css_label(headings[i].label));
  }
  html_ += fmt::format("}}</style><table id={} class=\"stack{}\" role=table>", id,
                       sortable ? " sort" : "");
  if (!caption.empty()) html_ += "<caption>" + caption + "</caption>";
  html_ += "<thead role=rowgroup><tr role=row>";
  for (const Heading& heading : headings) {
    html_ += fmt::format("<th role=columnheader scope=col{}>{}</th>",
                         heading.numeric ? " class=n" : "", heading.label);
  }
  html_ += "</tr></thead>\n<tbody role=rowgroup>";
}

void HtmlTable::begin_row() {
  end_row();
  html_ += "<tr role=row>";
  in_row_ = true;
}

void HtmlTable::end_row() {
  if (in_row_) html_ += "</tr>\n";
  in_row_ = false;
}

void HtmlTable::head_cell(const std::string& html) {
  html_ += "<th role=rowheader scope=row>" + html + "</th>";
}

void HtmlTable::cell(const std::string& html, const char* css_class) {
  html_ +=
      *css_class == '\0' ? "<td role=cell>" : fmt::format("<td role=cell class=\"{}\">", css_class);
  html_ += html + "</td>";
}

void HtmlTable::number(std::optional<double> value, const std::string& html) {
  html_ += value ? fmt::format("<td role=cell class=n data-v={:.6g}>", *value)
                 : std::string("<td role=cell class=n>");
  html_ += html + "</td>";
}

std::string HtmlTable::finish() {
  end_row();
  return std::move(html_) + "</tbody></table>\n";
}

std::string outcome_html(const Arm& arm, bool reason) {
  const auto index = static_cast<std::size_t>(arm.outcome);
  std::string html =
      fmt::format("<span class=\"s s-{}\"><span aria-hidden=true>{}</span> {}</span>",
                  kOutcomeClasses[index], kOutcomeSymbols[index],
                  html_text(arm.outcome == Outcome::flagged ? arm.words : word(arm.outcome)));
  if (reason && arm.outcome != Outcome::ok) html += sub(html_text(arm.reason));
  return html;
}

std::string matrix_section(const ReportModel& model) {
  std::vector<Heading> headings{{"Model"}};
  for (const std::string& method : model.methods) headings.push_back({html_text(method)});
  HtmlTable table("matrix",
                  "Peak memory and time per step. A flagged cell is shown and kept out of ratios.",
                  std::move(headings));
  for (const Group& group : model.groups) {
    table.begin_row();
    table.head_cell(
        fmt::format("<a href=\"#{}\">{}</a>{}", group.id, group_label(group), sub(where(group))));
    for (const std::string& method : model.methods) {
      const auto arm = std::find_if(group.arms.begin(), group.arms.end(),
                                    [&](const Arm& a) { return a.method == method; });
      if (arm == group.arms.end()) {
        table.cell("<span class=s-pending>not planned</span>");
        continue;
      }
      std::string html = outcome_html(*arm, false);
      if (arm->memory_mb) html += line(record_link(arm->record, memory(arm->memory_mb), true));
      if (arm->s_per_step) {
        html += line(record_link(arm->record, seconds(arm->s_per_step) + "/step"));
      }
      table.cell(html);
    }
  }
  return table.finish();
}

std::string arms_table(const Group& group) {
  const std::string memory_name = group.cpu ? "Peak host memory (RSS)" : "Peak memory";
  const std::string ratio = group.reference.empty() ? "" : " against " + html_text(group.reference);
  HtmlTable table("arms-" + group.id, "",
                  {{"Method"},
                   {"Outcome"},
                   {memory_name, true},
                   {"Time per step", true},
                   {"Throughput", true},
                   {"Memory ratio", true},
                   {"Time ratio", true},
                   {"Bitwise exact", true}});
  const double scale = memory_scale(group);
  for (const Arm& arm : group.arms) {
    table.begin_row();
    table.head_cell(swatch(arm.method) + record_link(arm.record, arm.method, true));
    table.cell(outcome_html(arm));
    std::string peak = record_link(arm.record, memory(arm.memory_mb));
    if (arm.memory_mb && scale > 0) {
      const double limit = group.cpu || !group.card_mb ? 0 : *group.card_mb / scale;
      peak += bar(arm.method, *arm.memory_mb / scale, limit);
    }
    if (arm.memory_share) {
      peak += sub(fmt::format("{:.0f} % of the card", 100 * *arm.memory_share));
    }
    table.number(arm.memory_mb, peak);
    std::string time = record_link(arm.record, seconds(arm.s_per_step));
    if (arm.s_low && arm.passes_ok > 1) time += sub(seconds_range(arm.s_low, arm.s_high));
    table.number(arm.s_per_step, time + fewer_passes(arm));
    table.number(arm.tokens_per_s, record_link(arm.record, token_rate(arm.tokens_per_s)));
    table.number(arm.memory_ratio, record_link(arm.record, factor(arm.memory_ratio)));
    table.number(arm.time_ratio, record_link(arm.record, factor(arm.time_ratio)) +
                                     sub(interval_text(arm.time_ratio_interval)));
    table.number({}, record_link(arm.parity ? arm.parity->record : "", exact_text(arm.parity)));
  }
  std::string note;
  if (!group.reference.empty()) {
    note = fmt::format(
        "<p class=note>Ratios are{}; below a time ratio, its 95 % bootstrap interval over passes. "
        "Below a time, the least and the most over passes.{}</p>",
        ratio,
        group.cpu || !group.card_mb ? "" : " The line in a memory bar marks the card's memory.");
  }
  return table.finish() + note;
}

std::string parity_section(const ReportModel& model) {
  HtmlTable table("parity-table", "",
                  {{"Model"},
                   {"Compared"},
                   {"Bitwise exact", true},
                   {"Steps", true},
                   {"Largest loss difference", true},
                   {"Largest weight difference", true}});
  for (const Group& group : model.groups) {
    for (const Arm& arm : group.arms) {
      if (arm.method != "poros" && !arm.parity) continue;
      const Parity parity = arm.parity.value_or(Parity{"resident", {}, {}, {}, {}, ""});
      const std::string steps = parity.steps ? grouped(*parity.steps) : kMissing;
      table.begin_row();
      table.head_cell(group_label(group) + sub(where(group)));
      table.cell(html_text(arm.method + " against " + parity.reference));
      table.number({}, record_link(parity.record, exact_text(arm.parity), true));
      table.number({}, record_link(parity.record, steps));
      table.number({}, record_link(parity.record, difference(parity.loss_max_diff)));
      table.number({}, record_link(parity.record, difference(parity.weight_max_diff)));
    }
  }
  return table.finish();
}

std::string failures_section(const ReportModel& model) {
  HtmlTable table("failures-table", "",
                  {{"Model"}, {"Method"}, {"Outcome"}, {"Message"}, {"Record"}});
  bool any = false;
  for (const Group& group : model.groups) {
    for (const Arm& arm : group.arms) {
      if (arm.outcome == Outcome::ok) continue;
      any = true;
      table.begin_row();
      table.head_cell(group_label(group) + sub(where(group)));
      table.cell(html_text(arm.method));
      table.cell(outcome_html(arm));
      table.cell(html_text(arm.message), "long pre");
      table.cell(record_link(arm.record, arm.record.empty() ? kMissing : arm.record, true), "mono");
    }
  }
  std::string html = any ? table.finish() : "<p>None: every cell ended ok.</p>";
  if (!model.unnamed_pending.empty()) {
    html += fmt::format("<p>Not run and known by key only: {}.</p>",
                        counted(model.unnamed_pending.size(), "cell"));
  }
  return html;
}

std::string ratios_section(const ReportModel& model) {
  if (model.ratios.empty()) {
    return "<p>No ratio could be formed: that takes two arms of one group that ended ok, one of "
           "them resident or peft.</p>";
  }
  HtmlTable table("ratios-table",
                  "Median over comparison groups, with the least and the most in brackets.",
                  {{"Method"},
                   {"Against"},
                   {"Memory", true},
                   {"Time per step", true},
                   {"Groups expected", true},
                   {"Compared", true},
                   {"Excluded as flagged", true}});
  const auto with_spread = [](const auto& middle, const auto& low, const auto& high) {
    if (!middle) return std::string(kMissing);
    const std::string least = significant(*low), most = significant(*high);
    return factor(middle) + (least == most ? "" : fmt::format(" ({}\u2013{})", least, most));
  };
  for (const MethodSummary& s : model.ratios) {
    table.begin_row();
    table.head_cell(html_text(s.method));
    table.cell(html_text(s.reference));
    table.number(s.memory_ratio, with_spread(s.memory_ratio, s.memory_low, s.memory_high));
    table.number(s.time_ratio, with_spread(s.time_ratio, s.time_low, s.time_high));
    table.number(static_cast<double>(s.groups), std::to_string(s.groups));
    table.number(static_cast<double>(s.compared), std::to_string(s.compared));
    table.number(static_cast<double>(s.excluded), std::to_string(s.excluded));
  }
  return table.finish();
}

std::string cells_section(const ReportModel& model) {
  HtmlTable table("cells-table", html_text(model.counts.text()) + ".",
                  {{"Model"},
                   {"Hardware"},
                   {"Method"},
                   {"Outcome"},
                   {"Peak memory", true},
                   {"Time per step", true},
                   {"Spread (stddev)", true},
                   {"Throughput", true},
                   {"Passes", true},
                   {"Load", true},
                   {"Host RSS", true}},
                  true);
  for (const Group& group : model.groups) {
    for (const Arm& arm : group.arms) {
      table.begin_row();
      table.head_cell(group_label(group) + sub(html_text(group.precision)));
      table.cell(html_text(group.hardware));
      table.cell(record_link(arm.record, arm.method, true));
      table.cell(outcome_html(arm));
      table.number(arm.memory_mb, record_link(arm.record, memory(arm.memory_mb)));
      table.number(arm.s_per_step, record_link(arm.record, seconds(arm.s_per_step)));
      table.number(arm.s_stddev, record_link(arm.record, seconds(arm.s_stddev)));
      table.number(arm.tokens_per_s, record_link(arm.record, token_rate(arm.tokens_per_s)));
      table.number(static_cast<double>(arm.passes_ok),
                   arm.record.empty() ? kMissing : passes_text(arm));
      table.number(arm.load_s, record_link(arm.record, seconds(arm.load_s)));
      table.number(arm.host_rss_mb, record_link(arm.record, memory(arm.host_rss_mb)));
    }
  }
  return table.finish();
}

}  // namespace poros
