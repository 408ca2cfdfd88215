// SPDX-License-Identifier: Apache-2.0
// Building blocks of the HTML report.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/report_model.hpp"

namespace poros {

/// Text that links to the record that it came from; plain where there is none or nothing was
/// measured. A row's first link takes part in keyboard order, the others (same target) do not.
[[nodiscard]] std::string record_link(const std::string& record, const std::string& text,
                                      bool first = false);

struct Heading {
  std::string label;  // markup: what is dynamic in it must have been escaped
  bool numeric = false;
};

/// A table that turns into a list of label-value lines on a narrow screen.
class HtmlTable {
 public:
  /// @param sortable the page's script adds sorting and a filter
  HtmlTable(std::string id, const std::string& caption, std::vector<Heading> headings,
            bool sortable = false);

  void begin_row();
  /// `html` is markup: what is dynamic in it must have been escaped.
  void head_cell(const std::string& html);
  void cell(const std::string& html, const char* css_class = "");
  /// A right-aligned number with its value for sorting; missing values sort last.
  void number(std::optional<double> value, const std::string& html);
  [[nodiscard]] std::string finish();

 private:
  void end_row();
  std::string html_;
  bool in_row_ = false;
};

/// The outcome as a symbol and words: "✓ ok", "✕ out of memory"; below it the reason, if asked for.
[[nodiscard]] std::string outcome_html(const Arm& arm, bool reason = true);

[[nodiscard]] std::string matrix_section(const ReportModel& model);
[[nodiscard]] std::string arms_table(const Group& group);
[[nodiscard]] std::string parity_section(const ReportModel& model);
[[nodiscard]] std::string failures_section(const ReportModel& model);
[[nodiscard]] std::string cells_section(const ReportModel& model);
[[nodiscard]] std::string ratios_section(const ReportModel& model);

}  // namespace poros
