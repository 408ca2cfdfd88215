// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace poros {

extern const char* const kReportStyle;   // analysis/report.css
extern const char* const kReportScript;  // analysis/report.js

}  // namespace poros
