// SPDX-License-Identifier: Apache-2.0
// Parts of make_report_model, one a file.
#pragma once

#include "analysis/report_model.hpp"

namespace poros {

/// Title, protocol, hashes, period.
void describe_campaign(const Campaign& campaign, ReportModel& model);

/// What was and was not held identical, settings, environments, software.
void describe_conditions(const Campaign& campaign, ReportModel& model);

/// Ratios over groups and the summary in words. Needs counts and groups.
void summarise(ReportModel& model);

}  // namespace poros
