// SPDX-License-Identifier: Apache-2.0
#include "campaign/doctor.hpp"

#include <algorithm>

namespace poros {

const char* name_of(Health health) {
  switch (health) {
    case Health::ok:
      return "ok";
    case Health::note:
      return "note";
    case Health::warn:
      return "warn";
    case Health::error:
      return "error";
  }
  return "?";
}

std::vector<Finding> examine_machine(const DoctorOptions& options) {
  std::vector<Finding> findings;
  examine_gpus(options, findings);
  examine_host(options, findings);
  examine_software(options, findings);
  return findings;
}

Json to_json(const std::vector<Finding>& findings) {
  Json list = Json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"group", finding.group},
                    {"name", finding.name},
                    {"value", finding.value},
                    {"health", name_of(finding.health)},
                    {"mend", finding.mend.empty() ? Json(nullptr) : Json(finding.mend)}});
  }
  const bool can_run = std::none_of(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.health == Health::error;
  });
  return {{"can_run", can_run}, {"findings", list}};
}

}  // namespace poros
