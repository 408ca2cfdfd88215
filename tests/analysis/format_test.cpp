// SPDX-License-Identifier: Apache-2.0
#include "analysis/format.hpp"

#include <algorithm>

#include <gtest/gtest.h>

#include "analysis/escape.hpp"
#include "analysis/svg_chart.hpp"

namespace poros {
namespace {

TEST(Format, NumbersWithUnits) {
  EXPECT_EQ(significant(0.45123), "0.451");
  EXPECT_EQ(significant(12.345), "12.3");
  EXPECT_EQ(significant(9080.4), "9,080");
  EXPECT_EQ(significant(1234567), "1,234,567");
  EXPECT_EQ(significant(0), "0");
  EXPECT_EQ(significant(-1234.5), "-1,234");
  EXPECT_EQ(significant(3.1e-7), "3.10e-07");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(-999), "-999");
  EXPECT_EQ(memory(812.0), "812 MiB");
  EXPECT_EQ(memory(11468.8), "11.2 GiB");
  EXPECT_EQ(seconds(0.0382), "38.2 ms");
  EXPECT_EQ(seconds(0.4512), "0.451 s");
  EXPECT_EQ(seconds(125.0), "2 min 5 s");
  EXPECT_EQ(seconds_range(0.4491, 0.455), "0.449\u20130.455 s");
  EXPECT_EQ(seconds_range(0.01, 0.0222), "10.0\u201322.2 ms");
  EXPECT_EQ(token_rate(9080.0), "9,080 tokens/s");
  EXPECT_EQ(factor(1.06), "1.06\u00d7");
  EXPECT_EQ(difference(0.0), "0");
  EXPECT_EQ(difference(3.1e-7), "3.1e-07");
  EXPECT_EQ(counted(1, "cell"), "1 cell");
  EXPECT_EQ(counted(2000, "cell"), "2,000 cells");
  EXPECT_EQ(counted(2, "record is", "records are"), "2 records are");
}

TEST(Format, MissingIsNeverZero) {
  EXPECT_EQ(memory({}), "--");
  EXPECT_EQ(seconds({}), "--");
  EXPECT_EQ(seconds_range({}, 1.0), "--");
  EXPECT_EQ(token_rate({}), "--");
  EXPECT_EQ(factor({}), "--");
  EXPECT_EQ(difference({}), "--");
  EXPECT_EQ(short_hash(""), "--");
}

TEST(Escape, Html) {
  EXPECT_EQ(html_text("<a href=\"x\" id='y'>&"),
            "&lt;a href=&quot;x&quot; id=&#39;y&#39;&gt;&amp;");
  EXPECT_EQ(html_text(std::string("a\0b\x1b\n", 5)),
            "a\xEF\xBF\xBD"
            "b\xEF\xBF\xBD\n");
}

TEST(Escape, UrlsStayRelative) {
  EXPECT_EQ(relative_url("artifacts/ab/0.1.json"), "artifacts/ab/0.1.json");
  EXPECT_EQ(relative_url("javascript:alert(1)"), "javascript%3Aalert%281%29");
  EXPECT_EQ(relative_url("//evil.example/x"), "evil.example/x");
  EXPECT_EQ(relative_url("/etc/passwd"), "etc/passwd");
  EXPECT_EQ(relative_url("../x").find(".."), std::string::npos);
  EXPECT_EQ(relative_url("a\"b<c\n"), "a%22b%3Cc%0A");
  EXPECT_EQ(relative_url("https://evil.example"), "https%3A/evil.example");
}

TEST(Escape, Markdown) {
  EXPECT_EQ(markdown_text("a|b`c`\nd"), "a\\|b\\`c\\` d");
  EXPECT_EQ(markdown_text("[x](https://e.org)"), "\\[x\\](https&#58;//e.org)");
  EXPECT_EQ(markdown_text("<img src=x>"), "&lt;img src=x&gt;");
}

// Reference: printf '%s' 'alert(1)' | openssl dgst -sha256 -binary | base64
TEST(Escape, ScriptHash) {
  EXPECT_EQ(csp_hash("alert(1)"), "'sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI='");
}

TEST(Chart, TicksAreRoundAndCover) {
  EXPECT_EQ(round_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  const auto ticks = round_ticks(1.62, 2.51, 4);
  EXPECT_GE(ticks.size(), 3u);
  EXPECT_LE(ticks.size(), 6u);
}

TEST(Chart, ThinnedLinesKeepFirstAndLastStep) {
  LineChart chart;
  chart.title = "t";
  chart.max_points = 10;
  Line line{"poros", {}};
  for (int i = 0; i < 1003; ++i) line.values.push_back(i);
  chart.lines = {line};
  const std::string svg = line_chart(chart);
  const std::size_t begin = svg.find("points=\"") + 8;
  const std::string points = svg.substr(begin, svg.find('"', begin) - begin);
  EXPECT_LE(std::count(points.begin(), points.end(), ','), 11);
  EXPECT_EQ(points.substr(0, 3), "50,");  // the axis begins at step 1
  line.values.resize(1);
  chart.lines = {line};
  EXPECT_NE(line_chart(chart), "");
  chart.lines = {{"poros", {}}};
  EXPECT_EQ(line_chart(chart), "");
}

TEST(Chart, EqualValuesDontDivideByZero) {
  LineChart chart;
  chart.lines = {{"poros", {2, 2, 2}}, {"resident", {0, 0, 0}}};
  const std::string svg = line_chart(chart);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  chart.lines = {{"poros", {0, 0}}};
  EXPECT_EQ(line_chart(chart).find("nan"), std::string::npos);
}

}  // namespace
}  // namespace poros
