// SPDX-License-Identifier: Apache-2.0
#include "analysis/report.hpp"

#include "base/files.hpp"

namespace poros {

ReportPaths write_report(const std::filesystem::path& source, const std::filesystem::path& out_dir,
                         bool html, bool markdown) {
  const ReportModel model = make_report_model(load_campaign(source));
  ReportPaths paths;
  if (html) {
    write_file_durably(out_dir / "report.html", report_html(model));
    paths.html = out_dir / "report.html";
  }
  if (markdown) {
    write_file_durably(out_dir / "report.md", report_markdown(model));
    paths.markdown = out_dir / "report.md";
  }
  return paths;
}

}  // namespace poros
