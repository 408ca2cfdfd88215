// SPDX-License-Identifier: Apache-2.0
#include "analysis/svg_chart.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "analysis/escape.hpp"
#include "analysis/format.hpp"

namespace poros {
namespace {

constexpr double kWidth = 420, kHeight = 250;
constexpr double kLeft = 50, kRight = 12, kTop = 14, kBottom = 40;

/// A data range and the pixels that it covers.
struct Axis {
  double low, high, from, to;
  std::vector<double> ticks;
  [[nodiscard]] double at(double value) const {
    return from + (value - low) / (high - low) * (to - from);
  }
};

Axis make_axis(double low, double high, double from, double to, int n_ticks) {
  if (!(high > low)) {
    const double margin = low == 0 ? 1 : std::abs(low) * 0.05;
    low -= low == 0 ? 0 : margin;
    high += margin;
  }
  Axis axis{low, high, from, to, round_ticks(low, high, n_ticks)};
  axis.low = std::min(low, axis.ticks.front());
  axis.high = std::max(high, axis.ticks.back());
  return axis;
}

/// Digits that tell the ticks apart.
std::string tick_text(double value, const std::vector<double>& ticks) {
  const double step = ticks.size() > 1 ? ticks[1] - ticks[0] : std::abs(value);
  const int decimals =
      step > 0 ? std::clamp(static_cast<int>(std::ceil(-std::log10(step) - 1e-9)), 0, 9) : 0;
  if (std::abs(value) >= 10000) return fmt::format("{:g}k", value / 1000);
  return fmt::format("{:.{}f}", value, decimals);
}

std::string frame(const Axis& x, const Axis& y, const std::string& x_label,
                  const std::string& y_label) {
  std::string svg;
  for (const double tick : y.ticks) {
    svg += fmt::format(
        "<path class=grid d=\"M{} {:.1f}H{}\"/><text x={} y={:.1f} class=ty>{}</text>", kLeft,
        y.at(tick), kWidth - kRight, kLeft - 7, y.at(tick) + 4, tick_text(tick, y.ticks));
  }
  for (const double tick : x.ticks) {
    svg += fmt::format("<text x={:.1f} y={} class=tx>{}</text>", x.at(tick), kHeight - kBottom + 17,
                       tick_text(tick, x.ticks));
  }
  svg += fmt::format("<path class=axis d=\"M{0} {1}H{2}\"/>", kLeft, kHeight - kBottom,
                     kWidth - kRight);
  svg += fmt::format("<text x={} y={} class=tx>{}</text>", (kLeft + kWidth - kRight) / 2,
                     kHeight - 5, html_text(x_label));
  svg += fmt::format("<text class=tl transform=\"translate(11 {}) rotate(-90)\">{}</text>",
                     (kTop + kHeight - kBottom) / 2, html_text(y_label));
  return svg;
}

std::string begin_svg(const std::string& title) {
  return fmt::format("<svg class=chart viewBox=\"0 0 {} {}\" role=img aria-label=\"{}\">", kWidth,
                     kHeight, html_text(title));
}

/// Coordinates with one decimal, ".0" left out: a large report is mostly coordinates.
std::string coordinate(double value) {
  std::string text = fmt::format("{:.1f}", value);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text;
}

std::string polyline(const Line& line, const Axis& x, const Axis& y, std::size_t max_points) {
  const std::size_t n = line.values.size();
  const std::size_t stride = std::max<std::size_t>(1, (n + max_points - 1) / max_points);
  std::string points;
  for (std::size_t i = 0; i < n; i += stride) {
    points +=
        coordinate(x.at(static_cast<double>(i + 1))) + ',' + coordinate(y.at(line.values[i])) + ' ';
    if (i + stride >= n && i + 1 < n) i = n - 1 - stride;  // the last step too
  }
  if (!points.empty()) points.pop_back();
  return fmt::format("<polyline class=\"l {}\" points=\"{}\"/>", method_class(line.method), points);
}

std::string marker(const Point& point, double x, double y) {
  static constexpr std::array kShapes{"M-5 -5H5V5H-5Z", "M0 -7L7 0L0 7L-7 0Z", "M0 -7L7 6H-7Z",
                                      "M0 7L7 -6H-7Z", "M-6 -2H-2V-6H2V-2H6V2H2V6H-2V2H-6Z"};
  static constexpr std::array kOrder{"resident", "poros", "unsloth", "peft", "accelerate_offload"};
  const auto found = std::find(kOrder.begin(), kOrder.end(), point.method);
  const auto shape = static_cast<std::size_t>(found - kOrder.begin()) % kShapes.size();
  return fmt::format("<path class=\"p {}\" transform=\"translate({:.1f} {:.1f})\" d=\"{}\"/>",
                     method_class(point.method), x, y, kShapes[shape]);
}

}  // namespace

std::string method_class(const std::string& method) {
  static constexpr std::array kKnown{"resident", "poros", "unsloth", "peft", "accelerate_offload"};
  const bool known = std::find(kKnown.begin(), kKnown.end(), method) != kKnown.end();
  return known ? "m-" + method : "m-other";
}

std::vector<double> round_ticks(double low, double high, int n) {
  const double rough = (high - low) / std::max(1, n);
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double nice : {1.0, 2.0, 5.0}) {
    if (nice * power >= rough * 0.75) {
      step = nice * power;
      break;
    }
  }
  std::vector<double> ticks;
  const auto first = static_cast<std::int64_t>(std::ceil(low / step - 1e-9));
  const auto last = static_cast<std::int64_t>(std::floor(high / step + 1e-9));
  for (std::int64_t i = first; i <= last; ++i) ticks.push_back(static_cast<double>(i) * step);
  if (ticks.empty()) ticks.push_back(low);
  return ticks;
}

std::string line_chart(const LineChart& chart) {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  std::size_t steps = 0;
  for (const Line& line : chart.lines) {
    for (const double value : line.values) {
      low = std::min(low, value);
      high = std::max(high, value);
    }
    steps = std::max(steps, line.values.size());
  }
  if (steps == 0) return "";
  if (chart.from_zero) low = std::min(low, 0.0);
  const Axis x =
      make_axis(1, static_cast<double>(std::max<std::size_t>(2, steps)), kLeft, kWidth - kRight, 5);
  const Axis y = make_axis(low, high, kHeight - kBottom, kTop, 4);
  std::string svg = begin_svg(chart.title);
  if (chart.shaded_steps > 0 && chart.shaded_steps < static_cast<std::int64_t>(steps)) {
    const double end = x.at(static_cast<double>(chart.shaded_steps) + 0.5);
    svg += fmt::format("<rect class=warm x={} y={} width={:.1f} height={} />", kLeft, kTop,
                       end - kLeft, kHeight - kBottom - kTop);
    svg += fmt::format("<text class=tw x={} y={}>warm-up</text>", kLeft + 4, kTop + 11);
  }
  svg += frame(x, y, "optimizer step", chart.y_label);
  for (const Line& line : chart.lines) {
    if (!line.values.empty()) svg += polyline(line, x, y, chart.max_points);
  }
  return svg + "</svg>";
}

std::string scatter_chart(const std::string& title, const std::string& x_label,
                          const std::string& y_label, const std::vector<Point>& points) {
  if (points.empty()) return "";
  double x_high = 0, y_high = 0;
  for (const Point& point : points) {
    x_high = std::max(x_high, point.x);
    y_high = std::max(y_high, point.y);
  }
  const Axis x = make_axis(0, x_high * 1.08, kLeft, kWidth - kRight, 5);
  const Axis y = make_axis(0, y_high * 1.08, kHeight - kBottom, kTop, 4);
  std::string svg = begin_svg(title) + frame(x, y, x_label, y_label);
  for (const Point& point : points) {
    const double at_x = x.at(point.x), at_y = y.at(point.y);
    const bool left = at_x > kWidth * 0.7;
    svg += marker(point, at_x, at_y);
    svg += fmt::format("<text class={} x={:.1f} y={:.1f}>{}</text>", left ? "pe" : "ps",
                       at_x + (left ? -11 : 11), at_y + 4, html_text(point.method));
  }
  return svg + "</svg>";
}

std::string bar(const std::string& method, double share, double limit_share) {
  std::string svg = fmt::format(
      "<svg class=bar viewBox=\"0 0 100 10\" preserveAspectRatio=none aria-hidden=true>"
      "<rect class=track width=100 height=10 /><rect class=\"b {}\" width={:.1f} height=10 />",
      method_class(method), 100 * std::clamp(share, 0.0, 1.0));
  if (limit_share > 0 && limit_share <= 1) {
    svg += fmt::format("<path class=limit d=\"M{:.1f} 0V10\"/>", 100 * limit_share);
  }
  return svg + "</svg>";
}

std::string swatch(const std::string& method) {
  return fmt::format(
      "<svg class=swatch viewBox=\"0 0 34 10\" aria-hidden=true>"
      "<path class=\"l {}\" d=\"M1 5H33\"/></svg>",
      method_class(method));
}

}  // namespace poros
