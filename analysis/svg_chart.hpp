// SPDX-License-Identifier: Apache-2.0
// Plots as SVG text: no fonts, no scripts, no colours of their own (the page's style sheet gives
// each method its colour and dash pattern through the class m-<method>).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace poros {

/// The CSS class of a method: m-poros, m-resident, ..., m-other.
[[nodiscard]] std::string method_class(const std::string& method);

struct Line {
  std::string method;
  std::vector<double> values;  // at x = 1, 2, ...
};

struct LineChart {
  std::string title, y_label;
  std::vector<Line> lines;
  bool from_zero = false;         // the y axis begins at 0
  std::int64_t shaded_steps = 0;  // warm-up steps, shaded
  std::size_t max_points = 240;   // of a line; of more steps every k-th is drawn, and the last
};

/// Empty where no line has a value.
[[nodiscard]] std::string line_chart(const LineChart& chart);

struct Point {
  std::string method;
  double x = 0, y = 0;
};

/// Both axes from 0.
[[nodiscard]] std::string scatter_chart(const std::string& title, const std::string& x_label,
                                        const std::string& y_label,
                                        const std::vector<Point>& points);

/// A horizontal bar in a table cell, value and limit as shares of the width.
[[nodiscard]] std::string bar(const std::string& method, double share, double limit_share);

/// A short line sample for a legend.
[[nodiscard]] std::string swatch(const std::string& method);

/// About n round numbers that cover [low, high].
[[nodiscard]] std::vector<double> round_ticks(double low, double high, int n);

}  // namespace poros
