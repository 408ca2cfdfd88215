// SPDX-License-Identifier: Apache-2.0
// What this machine can run, what is wrong with it, and the command that mends it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "campaign/arms.hpp"

namespace poros {

enum class Health {
  ok,
  note,   // fine, and worth knowing: a thing that is absent and not needed everywhere
  warn,   // runs, but slower, smaller or without a part
  error,  // can't run
};
[[nodiscard]] const char* name_of(Health health);

struct Finding {
  std::string group;  // GPU, machine, software
  std::string name, value;
  Health health = Health::ok;
  std::string mend;  // what to do; empty where nothing is wrong
};

struct DoctorOptions {
  InstallPaths paths;
  std::filesystem::path cache;    // where quantised bases are kept
  std::filesystem::path results;  // where campaigns are written
  bool measure = true;            // copy rate, pinnable memory, disk rate: some seconds
};

/// Looks at everything. Nothing is installed or changed; files written to measure a disk are gone
/// afterwards. A part that can't be looked at is a finding, not an exception.
[[nodiscard]] std::vector<Finding> examine_machine(const DoctorOptions& options);

void examine_gpus(const DoctorOptions& options, std::vector<Finding>& findings);
void examine_host(const DoctorOptions& options, std::vector<Finding>& findings);
void examine_software(const DoctorOptions& options, std::vector<Finding>& findings);

/// {can_run, findings[{group, name, value, health, mend}]}: can_run is false with any error.
[[nodiscard]] Json to_json(const std::vector<Finding>& findings);

}  // namespace poros
