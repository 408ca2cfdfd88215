// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

#include "analysis/escape.hpp"
#include "analysis/format.hpp"
#include "analysis/report.hpp"
#include "analysis/report_assets.hpp"
#include "analysis/report_html_parts.hpp"
#include "analysis/svg_chart.hpp"

namespace poros {
namespace {

// Plots are most of a page's bytes: a campaign with more groups than this draws the first ones (the
// page says so), and thins long curves.
constexpr std::size_t kDrawnGroups = 40;
constexpr std::size_t kFewGroups = 12;

std::string section(const char* id, const char* title, const std::string& body) {
  return fmt::format(
      "<section id={0} aria-labelledby=h-{0}>\n<h2 id=h-{0}>{1}</h2>\n{2}</section>\n", id, title,
      body);
}

std::string list(const std::vector<std::string>& items) {
  std::string html = "<ul>";
  for (const auto& item : items) html += "<li>" + html_text(item) + "</li>";
  return html + "</ul>\n";
}

std::string pairs(const std::vector<NameValue>& items) {
  std::string html = "<dl class=pairs>";
  for (const auto& [name, value] : items) {
    html += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>", html_text(name),
                        value.empty() ? kMissing : html_text(value));
  }
  return html + "</dl>\n";
}

std::string head(const ReportModel& model) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n"
      "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; style-src "
      "'unsafe-inline'; script-src {}; base-uri 'none'; form-action 'none'\">\n"
      "<meta name=viewport content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=color-scheme content=\"light dark\">\n<meta name=referrer content=no-referrer>\n"
      "<title>{}: Poros Bench report</title>\n<style>{}</style>\n</head>\n",
      csp_hash(kReportScript), html_text(model.title), kReportStyle);
}

std::string count_tiles(const Counts& counts) {
  std::string html = "<dl class=counts>";
  const auto tile = [&](const std::string& name, std::size_t n) {
    html += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>", name,
                        grouped(static_cast<std::int64_t>(n)));
  };
  tile("cells expected", counts.expected);
  for (std::size_t i = 0; i < kOutcomes; ++i) {
    if (i == 0 || counts.of[i] > 0) tile(word(static_cast<Outcome>(i)), counts.of[i]);
  }
  return html + "</dl>\n";
}

std::string page_header(const ReportModel& model) {
  std::string over = "Poros Bench report";
  if (!model.device.empty()) over += " \u00b7 device " + html_text(model.device);
  if (!model.protocol.empty()) over += " \u00b7 protocol " + html_text(model.protocol);
  if (model.original_format) over += " \u00b7 records of the Python original";
  std::string html = fmt::format(
      "<body>\n<a class=skip href=\"#main\">Skip to the results</a>\n<header>\n<p "
      "class=over>{}</p>\n"
      "<h1>{}</h1>\n",
      over, html_text(model.title));
  if (!model.period.empty()) html += "<p class=note>" + html_text(model.period) + "</p>\n";
  html += count_tiles(model.counts);
  html += "<nav aria-label=\"Sections\"><ul>";
  for (const auto& [id, name] :
       {std::pair("summary", "Summary"), std::pair("status", "At a glance"),
        std::pair("groups", "Comparisons"), std::pair("ratios", "Ratios"),
        std::pair("parity", "Parity"), std::pair("failures", "Not ok"),
        std::pair("cells", "All cells"), std::pair("conditions", "Held identical"),
        std::pair("environment", "Hardware and software"), std::pair("records", "Records")}) {
    html += fmt::format("<li><a href=\"#{}\">{}</a></li>", id, name);
  }
  return html + "</ul></nav>\n</header>\n<main id=main>\n";
}

std::string figure(const std::string& title, const std::string& chart) {
  if (chart.empty()) return "";
  return fmt::format("<figure><figcaption>{}</figcaption>{}</figure>\n", title, chart);
}

/// Drawn from back to front: the wide resident line first, the dashed one of poros last.
std::vector<const Arm*> drawing_order(const Group& group) {
  std::vector<const Arm*> arms;
  for (const Arm& arm : group.arms) arms.push_back(&arm);
  std::stable_sort(arms.begin(), arms.end(), [](const Arm* a, const Arm* b) {
    const auto layer = [](const Arm* arm) {
      return arm->method == "resident" ? 0 : arm->method == "poros" ? 2 : 1;
    };
    return layer(a) < layer(b);
  });
  return arms;
}

std::string group_charts(const Group& group, std::size_t max_points) {
  const auto chart = [&](const char* what, const char* unit, Curve Arm::*curve, double scale,
                         bool from_zero, bool warmup) {
    LineChart c;
    c.title = fmt::format("{} of {} by optimizer step", what, group.title());
    c.y_label = unit;
    c.from_zero = from_zero;
    c.shaded_steps = warmup ? group.warmup_steps : 0;
    c.max_points = max_points;
    for (const Arm* arm : drawing_order(group)) {
      Line line{arm->method, (arm->*curve).values};
      for (double& value : line.values) value *= scale;
      c.lines.push_back(std::move(line));
    }
    return line_chart(c);
  };
  double most_mb = 0;
  for (const Arm& arm : group.arms) {
    for (const double mb : arm.memory.values) most_mb = std::max(most_mb, mb);
  }
  const bool gib = most_mb >= 1024;
  std::vector<Point> points;
  for (const Arm& arm : group.arms) {
    const bool comparable = arm.outcome == Outcome::ok && arm.memory_mb && arm.s_per_step;
    if (comparable) points.push_back({arm.method, *arm.memory_mb / 1024, *arm.s_per_step});
  }
  std::string html =
      figure("Training loss", chart("Training loss", "loss [nat]", &Arm::loss, 1, false, false));
  html +=
      figure("Time per step", chart("Time per step", "time [s]", &Arm::step_time, 1, true, true));
  html += figure(group.cpu ? "Host memory (RSS)" : "Memory allocated at the end of each step",
                 chart("Memory", gib ? "memory [GiB]" : "memory [MiB]", &Arm::memory,
                       gib ? 1.0 / 1024 : 1.0, true, false));
  if (points.size() > 1) {
    html += figure("Memory against speed",
                   scatter_chart("Peak memory against time per step of " + group.title(),
                                 "peak memory [GiB]", "time per step [s]", points));
  }
  if (html.empty()) return "";
  std::string legend = "<ul class=legend aria-label=\"Lines\">";
  for (const Arm& arm : group.arms) {
    if (arm.loss.values.empty() && arm.step_time.values.empty()) continue;
    const std::string& record = arm.loss.record.empty() ? arm.step_time.record : arm.loss.record;
    const std::int64_t pass = arm.loss.record.empty() ? arm.step_time.pass : arm.loss.pass;
    legend += fmt::format("<li>{}{}, {}</li>", swatch(arm.method), html_text(arm.method),
                          record_link(record, "pass " + std::to_string(pass + 1), true));
  }
  return legend + "</ul>\n<div class=charts>\n" + html + "</div>\n";
}

std::string groups_section(const ReportModel& model) {
  std::string html =
      "<p class=note>A comparison group is the cells that differ only in method; they run on one "
      "device with their passes interleaved. Curves are the recorded values of the first "
      "pass.</p>\n";
  const bool few = model.groups.size() <= kFewGroups;
  std::size_t drawn = 0;
  for (const Group& group : model.groups) {
    if (drawn++ == kDrawnGroups) {
      html += fmt::format(
          "<p>The first {} of {} are drawn here. The numbers of all stand in the table of all "
          "cells, "
          "their curves in the records and in campaign.h5.</p>\n",
          kDrawnGroups, counted(model.groups.size(), "comparison group"));
      break;
    }
    std::string device = html_text(group.hardware);
    if (group.card_mb && !group.cpu) device += ", " + memory(group.card_mb);
    html += fmt::format("<article class=group id={0}>\n<h3>{1} <span class=sub>{2}</span></h3>\n",
                        group.id, html_text(group.model.empty() ? group.model_id : group.model),
                        html_text(group.precision) + (device.empty() ? "" : " on " + device));
    html += arms_table(group) + group_charts(group, few ? 240 : 60) + "</article>\n";
  }
  // Anchors of the groups that are not drawn lead to the table of all cells.
  for (std::size_t i = kDrawnGroups; i < model.groups.size(); ++i) {
    html += fmt::format("<span id={}></span>", model.groups[i].id);
  }
  return html;
}

std::string conditions(const ReportModel& model) {
  std::string html = "<h3>Held identical</h3>\n" + list(model.held_identical);
  if (!model.not_identical.empty()) {
    html += "<h3>Not held identical</h3>\n" + list(model.not_identical);
  }
  return html + "<h3>Settings of the spec</h3>\n" + pairs(model.settings);
}

std::string environments(const std::vector<Environment>& list) {
  std::string html;
  for (const Environment& environment : list) {
    html += fmt::format(
        "<div class=panel><h4>{} <span class=sub>{}, as in {}</span></h4>{}</div>\n",
        html_text(environment.title), counted(environment.cells, "cell"),
        record_link(environment.record, environment.record, true), pairs(environment.facts));
  }
  return html.empty() ? "<p>No cell was measured.</p>" : html;
}

std::string records(const ReportModel& model) {
  std::string html = pairs({{"sha256 of the spec", model.spec_sha256},
                            {"sha256 of the receipts", model.receipts_sha256}});
  html +=
      "<ul><li><a href=\"results.jsonl\">results.jsonl</a>: one receipt a line, each with its "
      "sha256 and that of its artifact</li><li><a href=\"spec.json\">spec.json</a></li>"
      "<li><a href=\"campaign.h5\">campaign.h5</a>: the same content for h5py and pandas</li>"
      "</ul>\n";
  if (!model.problems.empty()) html += "<h3>Missing or altered</h3>\n" + list(model.problems);
  html +=
      "<p class=note>GiB is 2<sup>30</sup> bytes, MiB 2<sup>20</sup>. A step is one optimizer "
      "step. A pass is a fresh process; its step time is the median after the warm-up steps, a "
      "cell's is the median over passes. \u201c--\u201d: not measured. Nothing is extrapolated. "
      "Every number is a link to the record that it comes from.</p>\n";
  return html;
}

}  // namespace

std::string report_html(const Campaign& campaign) {
  return report_html(make_report_model(campaign));
}

std::string report_html(const ReportModel& model) {
  std::string html = head(model) + page_header(model);
  std::string sentences = "<ul class=summary>";
  for (const auto& sentence : model.summary) sentences += "<li>" + html_text(sentence) + "</li>";
  html += section("summary", "Summary", sentences + "</ul>\n");
  html += section("status", "At a glance", matrix_section(model));
  html += section("groups", "Comparisons", groups_section(model));
  html += section("ratios", "Ratios over all comparisons", ratios_section(model));
  html += section("parity", "Parity", parity_section(model));
  html += section("failures", "Cells that are not ok", failures_section(model));
  html += section("cells", "All cells", cells_section(model));
  html += section("conditions", "What was held identical", conditions(model));
  html += section("environment", "Hardware and software",
                  "<h3>Hardware</h3>\n" + environments(model.environments) + "<h3>Software</h3>\n" +
                      environments(model.software));
  html += section("records", "Records", records(model));
  html +=
      "</main>\n<footer>Made by Poros Bench from the records alone; the same records give the "
      "same page.</footer>\n<script>";
  html += kReportScript;
  return html + "</script>\n</body>\n</html>\n";
}

}  // namespace poros
